# SPDX-License-Identifier: Apache-2.0
"""`gossamer prune` with a recover stage: prune and recover, or recover a pruned artifact."""

import pytest
import torch
from safetensors.torch import save_file

import gossamer
from gossamer.nn import MaskedLinear


@pytest.fixture
def ids(tmp_path):
    path = tmp_path / "ids.safetensors"
    generator = torch.Generator().manual_seed(0)
    save_file({"input_ids": torch.randint(1000, (24, 16), generator=generator)}, path)
    return path


def run(gossamer_cli, model, out, ids, *more):
    sizes = ["--set", "calibration.samples=8", "--set", "calibration.tokens=16"]
    return gossamer_cli("prune", model, "-o", out, "--data", ids, *sizes, "--json", *more)


def test_prune_then_recover_in_one_recipe(gossamer_cli, tmp_path, ids):
    ran = run(
        gossamer_cli, "zoo:tiny-encoder", tmp_path / "out", ids,
        "--recipe", "recover-logits", "--set", "steps=5",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert ran.document["sparsity"] == 0.5
    assert any(note.startswith("recovered in 5 steps on 22") for note in ran.document["notes"])
    assert "recover: step 5" in ran.err
    layer = gossamer.load(tmp_path / "out").layers[0].query
    assert isinstance(layer, MaskedLinear)
    assert layer.density == 0.5
    # Curves and metrics stay, checkpoints go, and the artifact knows no clock of the training.
    run_folder = tmp_path / "out.run"
    assert sorted(p.name for p in run_folder.iterdir()) == ["metrics_stage_1.jsonl", "report.html"]
    page = (run_folder / "report.html").read_text()
    assert "held out loss" in page
    assert ">min</text>" in page
    assert "minutes" not in (tmp_path / "out" / "report.json").read_text()


def test_a_pruned_artifact_is_recovered_with_its_teacher(gossamer_cli, tmp_path, ids):
    pruned = tmp_path / "pruned"
    ran = gossamer_cli("prune", "zoo:tiny-encoder", "-o", pruned, "--sparsity", "0.9", "--json")
    assert ran.code == 0, ran.err
    alone = tmp_path / "alone.yaml"
    alone.write_text("gossamer: 1\nstages:\n  - recover: {logits: 1.0, steps: 5, rate: 0.001}\n")
    ran = run(gossamer_cli, pruned, tmp_path / "out", ids, "--recipe", alone)
    assert ran.code == 2
    assert "--teacher MODEL" in ran.err
    teacher = ["--teacher", "zoo:tiny-encoder"]
    ran = run(gossamer_cli, pruned, tmp_path / "out", ids, "--recipe", alone, *teacher)
    assert ran.code == 0, ran.err
    before, after = (gossamer.load(path).layers[0].query for path in (pruned, tmp_path / "out"))
    assert torch.equal(before.mask(), after.mask())
    assert not torch.equal(before.weight_parameter(), after.weight_parameter())
