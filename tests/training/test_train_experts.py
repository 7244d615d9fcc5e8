"""`gossamer train` of a model with experts: metrics, and a run that goes on to the same bits."""

import json

import pytest
import torch

import gossamer
from gossamer.errors import InputError


def recipe(steps, **experts):
    model = {"name": "gpt", "width": 16, "layers": 2, "heads": 2, "context": 16}
    model["experts"] = {"count": 4, "capacity": 1.25, "jitter": 0.05} | experts
    train = {
        "task": "text",
        "model": model,
        "steps": steps,
        "batch": 2,
        "rate": {"shape": "constant"},
        "checkpoint": {"every": 3},
        "evaluation": {"every": 0},
    }
    return {"gossamer": 1, "description": "x", "stages": [{"train": train}]}


# How many pairs find a place depends on the first weights, and is not what this is about.
@pytest.mark.filterwarnings("ignore:.*found no place:UserWarning")
@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_a_resumed_run_has_the_same_bits(tmp_path, balance):
    text = tmp_path / "a.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    whole = gossamer.train(recipe(8, balance=balance), data=text, out=tmp_path / "whole")
    # The last checkpoints are gone, as after a kill: the run goes on from step 3.
    cut = gossamer.train(recipe(8, balance=balance), data=text, out=tmp_path / "cut")
    folder = next(path for path in cut.run.iterdir() if path.name.startswith("checkpoint"))
    kept = sorted(path for path in folder.iterdir() if path.is_dir())
    assert len(kept) >= 2
    wanted = gossamer.load(whole.path).state_dict()
    for path in kept[1:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    again = gossamer.train(recipe(8, balance=balance), data=text, out=tmp_path / "cut", resume=True)
    assert again.resumed
    found = gossamer.load(again.path).state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    lines = [json.loads(line) for line in (whole.run / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if "moe_load" in line]
    assert logged
    assert {"moe_loss", "moe_dropped", "moe_entropy", "moe_load blocks.1.moe"} <= logged[-1].keys()


def test_more_experts_for_a_token_than_there_are_is_refused(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    with pytest.raises(InputError, match=r"top_k must be in .1, 4."):
        gossamer.train(recipe(2, top_k=5), data=text, out=tmp_path / "out")
