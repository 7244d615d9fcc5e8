# SPDX-License-Identifier: Apache-2.0
"""MiniLM's race: rivals of three layers, rivals that were trained, recall on other text."""

import json
import lzma
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import shrink_minilm
from gossamer.search.workloads import load_workload
from support import trained_rivals
from support.passages import read_passages, recall_of
from support.shrunk import Entry, Known, race
from support.three_layers import published, with_layers

sys.path.insert(0, str(Path(__file__).parents[1] / "search"))
from search_tools import random_lines, tiny_encoder, tiny_tokenizer


def onnx_of(model):
    """The file that the package holds: biases by name, factors by the node that uses them."""
    constants, nodes = [], []
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if name.startswith("pooler") or "position_ids" in name:
            continue
        layer = name.removesuffix(".weight")
        if array.ndim == 2 and layer.startswith("encoder"):
            key = f"onnx::MatMul_{len(nodes)}"
            constants.append(numpy_helper.from_array(np.ascontiguousarray(array.T), key))
            place = f"/model/model.0/auto_model/{_as_exported(layer)}/MatMul"
            nodes.append(helper.make_node("MatMul", ["x", key], [f"y{len(nodes)}"], name=place))
        else:
            constants.append(numpy_helper.from_array(array, f"model.0.auto_model.{name}"))
    graph = helper.make_graph(nodes, "encoder", [], [], constants)
    return helper.make_model(graph)


def _as_exported(layer):
    """Exporters write `layer.0` with its point, all others with slashes."""
    return layer.replace(".", "/").replace("layer/", "layer.")


def test_the_published_model_is_read_from_file_and_wheel(tmp_path):
    like, small = tiny_encoder(), with_layers(tiny_encoder(), [1])
    file, wheel = tmp_path / "small.onnx", tmp_path / "small.whl"
    onnx.save(onnx_of(small), file)
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.write(file, "package/model/small.onnx")
    ids = torch.tensor([[2, 3, 4, 5]])
    for path in (file, wheel):
        model = published(path, like)
        assert model.config.num_hidden_layers == 1
        wanted, found = (m(input_ids=ids).last_hidden_state for m in (small, model))
        assert torch.equal(wanted, found)


def test_a_file_without_a_weight_is_no_model(tmp_path):
    document = onnx_of(tiny_encoder())
    del document.graph.initializer[0]
    onnx.save(document, tmp_path / "small.onnx")
    with pytest.raises(ValueError, match="missing"):
        published(tmp_path / "small.onnx", tiny_encoder())


def test_layers_are_cut_out_of_a_copy():
    model = tiny_encoder()
    small = with_layers(model, [1])
    assert len(model.encoder.layer) == 2
    wanted, found = (m.encoder.layer[n].output.dense.weight for m, n in ((model, 1), (small, 0)))
    assert torch.equal(wanted, found)


def test_questions_are_first_sentences_and_titles_are_none(tmp_path):
    first, rest = "one two three four five six", " ".join(["rest"] * 20)
    lines = [" = A title = ", f" {first} . {rest} . ", f" {first} . too short . ", " a . " + rest,
             f" 1 @.@ 5 km @-@ wide {first} . {rest} {rest} . "]  # fmt: skip
    (tmp_path / "wikitext2").mkdir()
    packed = lzma.compress("\n".join(lines).encode())
    (tmp_path / "wikitext2" / "valid.txt.xz").write_bytes(packed)
    questions, passages = read_passages(tmp_path)
    assert questions == [f"{first} .", f"1.5 km-wide {first} ."]
    assert passages == [f"{rest} .", f"{rest} {rest} ."]
    assert len(read_passages(tmp_path, 1)[0]) == 1


def test_recall_counts_ties_against_the_model():
    cosines = torch.tensor([[0.9, 0.1, 0.1], [0.5, 0.5, 0.1], [0.3, 0.2, 0.1]])
    assert recall_of(cosines, (1, 2, 3)) == pytest.approx({1: 100 / 3, 2: 200 / 3, 3: 100})
    # Vectors that are all the same find nothing.
    assert recall_of(torch.ones(3, 3), (1,)) == {1: 0}


def row(model, engine, quality, ms, zeros=False, precision="int8"):
    return {"model": model, "engine": engine, "precision": precision, "quality": quality, "ms": ms,
            "bytes": 10, "zeros": zeros, "recall": {1: 60.0, 10: 90.0}}  # fmt: skip


ROWS = [
    row("L6", "torch", 86.7, 30.0, precision="fp32"),
    row("L6", "OpenVINO", 87.0, 9.0),
    row("L6-trained", "torch", 88.6, 30.0, precision="fp32"),
    row("L6-trained", "OpenVINO", 88.5, 9.5),
    row("L3", "OpenVINO", 86.2, 4.0),
    row("L3-trained", "OpenVINO", 87.4, 4.5),
    row("L6", "gossamer", 86.4, 5.0, zeros=True),
]


def test_the_rival_is_the_fastest_dense_int8_that_scores_no_worse():
    mine = ROWS[-1]
    verdict = shrink_minilm.judge(ROWS, mine, half=45)
    assert verdict["rival"] == "MiniLM-L3, published, trained, OpenVINO int8"
    found = verdict["found"]
    assert found["faster"] == pytest.approx(4.5 / 5)
    assert found["faster than MiniLM-L6"] == pytest.approx(9 / 5)
    assert found["lost"] == pytest.approx(0.3)
    assert found["lost to trained"] == pytest.approx(2.2)
    assert verdict["met"] == {"lost": True, "faster": False, "smaller": True}
    text = shrink_minilm.sentence(verdict)
    assert "0.90x MiniLM-L3, published, trained, OpenVINO int8" in text
    assert "+2.20 against dense trained on the same pairs" in text
    # Without three layers the rival is the fastest of six.
    six = [each for each in ROWS if "L3" not in each["model"]]
    assert shrink_minilm.judge(six, mine, half=45)["found"]["faster"] == pytest.approx(9 / 5)


def test_the_reference_of_all_speeds_is_the_best_dense_int8():
    table = shrink_minilm.shown({"race": ROWS, "figures on": "dev"})
    assert table.row_count == len(ROWS)
    assert "speed over MiniLM-L6, OpenVINO int8" in table.title
    by_column = {column.header: list(column.cells) for column in table.columns}
    assert by_column["trained on STS-B"] == ["no", "no", "yes", "yes", "no", "yes", "yes"]
    assert by_column["over dense int8"][-1] == "1.80x"


def test_times_are_medians_and_qualities_are_measured_once(tmp_path):
    times = iter([9.0, 1.0, 2.0, 3.0, 9.0, 9.0])
    entry = Entry("L6", "gossamer", "int8", "run", lambda: next(times), 10, key="abc")
    asked = []
    measures = {"quality": lambda entry: asked.append(entry.run) or 86.0}
    rows, busy = race([entry], 0, Known(tmp_path / "known.json", measures))
    assert rows[0]["ms"] == 3000
    assert rows[0]["least_ms"] == 1000
    assert busy["rounds"] == 5
    Known(tmp_path / "known.json", measures).of(entry)
    assert asked == ["run"]


def test_a_dense_rival_is_trained_once_and_the_best_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(trained_rivals, "STEPS", (2, 3))
    lines = random_lines(60)
    rows = [
        {"text_a": a, "text_b": b, "score": i / 30}
        for i, (a, b) in enumerate(zip(lines[:30], lines[30:], strict=True))
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = tiny_encoder()
    work = load_workload(model, tiny_tokenizer(), tmp_path / "pairs.jsonl")
    trainer = trained_rivals.Trainer(work, tmp_path)
    best, tried = trainer.best("L6", model, tries=((1.0, 1e-2), (0.5, 1e-3)))
    assert [each["steps"] for each in tried] == [2, 2, 5]
    assert tried[2]["rate"] == max(tried[:2], key=lambda each: each["quality"])["rate"]
    (taken,) = (each for each in tried if "taken" in each)
    assert taken["quality"] == max(each["quality"] for each in tried)
    assert work.choosing.measure(best) == pytest.approx(taken["quality"])
    weights = [m.encoder.layer[0].output.dense.weight for m in (model, best, tiny_encoder())]
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])
    monkeypatch.setattr(trained_rivals, "execute", None)
    assert trainer.best("L6", model, tries=((1.0, 1e-2), (0.5, 1e-3)))[1] == tried
