# SPDX-License-Identifier: Apache-2.0
"""ONNX files that are written, computed by the reference evaluator of onnx and by our reader.

ONNX Runtime has its turn where it is installed beside (`GOSSAMER_PEERS`).
"""

import json
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer import settings
from gossamer.cli.single_files import write_single_file
from gossamer.errors import InputError
from gossamer.io.artifact.exports import save_onnx
from gossamer.nn.layer_kinds import sparse_layers
from gossamer.nn.rounding import round_layer
from gossamer.zoo import MLP

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
transformers = pytest.importorskip("transformers")

from onnx.reference import ReferenceEvaluator  # noqa: E402


def encoder():
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 40,
    }  # fmt: skip
    config = transformers.BertConfig(**sizes)
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def texts(batch, tokens):
    ids = torch.randint(50, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
    mask = torch.ones_like(ids)
    mask[0, tokens // 2 + 1 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def by_reference(path, inputs):
    given = {name: tensor.numpy() for name, tensor in inputs.items()}
    return torch.from_numpy(ReferenceEvaluator(str(path)).run(None, given)[0])


def worst(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


class Written(NamedTuple):
    model: nn.Module
    path: Path
    document: dict
    said: str


@pytest.fixture(scope="module", params=[None, "int8"])
def written(request, tmp_path_factory):
    """A pruned encoder, as it is and rounded, and its file: exports take seconds."""
    model = encoder()
    gossamer.sparsify(model, sparsity=0.7)
    gossamer.compact(model)
    for _, layer in sparse_layers(model) if request.param else ():
        round_layer(layer, request.param)
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    document, said = write_single_file(model, path, "onnx", None, {})
    return Written(model, path, document, " ".join(said))


def test_a_pruned_encoder_computes_the_same_at_other_sizes(written):
    model = onnx.load(written.path)
    assert written.document["inputs"] == ["input_ids", "attention_mask"]
    assert [entry.name for entry in model.graph.output] == ["last_hidden_state"]
    for size in ((2, 9), (1, 1), (3, 40)):
        inputs = texts(*size)
        with torch.no_grad():
            expected = written.model(**inputs)[0]
        assert worst(by_reference(written.path, inputs), expected) < 1e-5, size
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    layers = [layer for _, layer in sparse_layers(written.model)]
    zeros = sum(int((array == 0).sum()) for array in arrays)
    assert zeros >= sum(layer.mask().numel() - layer.nnz for layer in layers)


def test_what_is_written_is_read_as_pruned_again(written):
    again = gossamer.load(written.path, detect_masks=True)
    assert len(list(sparse_layers(again))) == len(list(sparse_layers(written.model)))


def test_weights_on_the_grid_of_int8_are_codes_to_the_bit(written):
    model = onnx.load(written.path)
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    stored = []
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            codes, scales = (arrays[name] for name in node.input)
            assert codes.dtype == np.int8
            assert scales.dtype == np.float32
            axis = node.attribute[0].i
            shape = [1, 1]
            shape[axis] = -1
            weight = torch.from_numpy(codes * scales.reshape(shape))
            stored.append(weight.T if axis else weight)
    assert len(stored) == written.document["int8_weights"]
    assert ("DequantizeLinear" in written.said) == bool(stored)
    for _, layer in sparse_layers(written.model) if stored else ():
        weight = layer.to_dense().weight
        assert any(w.shape == weight.shape and torch.equal(w, weight) for w in stored)


def test_both_kinds_of_files_were_looked_at(written, request):
    rounded = "int8" in request.node.name
    assert bool(written.document["int8_weights"]) == rounded


def test_other_models_and_forms(tmp_path):
    torch.manual_seed(0)
    model = MLP((24, 48, 8)).eval()
    gossamer.sparsify(model, sparsity=0.9)
    fast = gossamer.compile(model, tokens=4)
    x = torch.randn(5, 24)
    for number, form in enumerate((model, fast)):
        path = tmp_path / f"{number}.onnx"
        document, _ = write_single_file(form, path, "onnx", None, {})
        with torch.no_grad():
            assert worst(by_reference(path, {document["inputs"][0]: x}), model(x)) < 1e-5
    convs = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    gossamer.sparsify(convs, sparsity=0.5)
    image = torch.randn(2, 3, 9, 9)
    save_onnx(convs, tmp_path / "c.onnx", {"input": image}, batched=("input",))
    image = torch.randn(3, 3, 9, 9)
    with torch.no_grad():
        assert worst(by_reference(tmp_path / "c.onnx", {"input": image}), convs(image)) < 1e-5


def test_what_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="nobody knows what it is called with"):
        write_single_file(nn.Sequential(nn.ReLU()), tmp_path / "m.onnx", "onnx", None, {})

    class Branches(nn.Module):
        def forward(self, x):
            return x + 1 if bool(x.sum() > 0) else x - 1

    with pytest.raises(InputError, match="torch cannot export it to ONNX"):
        save_onnx(Branches(), tmp_path / "m.onnx", {"x": torch.ones(2, 2)})
    assert list(tmp_path.iterdir()) == []


RUN = """
import json, sys
import numpy, onnxruntime
path, data, level = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
inputs = {name: numpy.array(rows) for name, rows in json.load(open(data)).items()}
print(json.dumps(session.run(None, inputs)[0].tolist()))
"""


def test_onnx_runtime_computes_the_same(written, tmp_path):
    python = settings.peers_dir() / "onnxruntime" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no ONNX Runtime at {python}: benchmarks/peers/setup.sh")
    inputs = texts(3, 17)
    rows = {name: tensor.tolist() for name, tensor in inputs.items()}
    (tmp_path / "inputs.json").write_text(json.dumps(rows))
    with torch.no_grad():
        expected = written.model(**inputs)[0]
    # Level 1 keeps activations float32, 4 rounds them to int8 in blocks.
    for level, bound in (("1", 1e-5), ("4", 0.02)):
        ran = subprocess.run(
            [python, "-c", RUN, written.path, tmp_path / "inputs.json", level],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        assert worst(torch.tensor(json.loads(ran.stdout)), expected) < bound


def test_the_command_line_knows_every_type():
    from gossamer.cli import convert
    from gossamer.io.gguf import GGUF_TYPES

    assert convert.GGUF_TYPES == GGUF_TYPES


def test_files_and_words_of_the_command(gossamer_cli, tmp_path):
    ran = gossamer_cli("convert", "zoo:mlp", tmp_path / "m.onnx", "--format", "onnx", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["output"]["format"] == "onnx"
    assert Path(tmp_path / "m.onnx").stat().st_size == ran.document["output"]["tensor_bytes"]
    ran = gossamer_cli("convert", "zoo:mlp", tmp_path / "m.gguf", "--format", "gguf")
    assert ran.code == 2
    assert "hold decoders of transformers" in ran.err
    ran = gossamer_cli("convert", "zoo:mlp", tmp_path / "m", "--type", "Q8_0")
    assert ran.code == 2
    assert "--type: is for --format gguf" in ran.err
    ran = gossamer_cli("convert", "zoo:mlp", tmp_path, "--format", "onnx")
    assert ran.code == 4
    assert "is a folder" in ran.err
