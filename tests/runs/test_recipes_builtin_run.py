import pytest
import torch

from gossamer import sparsify
from gossamer.nn.layers import MaskedWeight
from gossamer.pruning.calibration.journal import DiskJournal
from gossamer.recipes import Recipe, builtin_names, load_recipe
from gossamer.recipes.schema import Stage
from gossamer.recipes.stages import Prune
from gossamer.runs import execute
from gossamer.runs.stages import StageInput
from gossamer.zoo import TinyEncoder


def tiny():
    torch.manual_seed(0)
    return TinyEncoder(50, 3, width=64, num_heads=4, num_layers=2, ffn_width=128).eval()


# Those that train have their own folder, data and checkpoints:
# tests/training/test_builtin_recipes.py; those that leave the bytes as they are:
# tests/runs/test_recipes_{tokens,relufy,mixtures,attention}.py; those of convolutional networks:
# tests/runs/test_recipes_channels.py
ELSEWHERE = (
    *("train-", "tokens-", "relufy-", "moefy-", "upcycle-", "fewer-", "attention-", "channels-"),
)
PRUNING = [name for name in builtin_names() if not name.startswith(ELSEWHERE)]


@pytest.mark.parametrize("name", PRUNING)
def test_every_built_in_recipe_runs(name):
    model = tiny()
    generator = torch.Generator().manual_seed(1)
    data = [torch.randint(50, (6, 12), generator=generator) for _ in range(6)]
    # Calls cost as much as arithmetic in so small a model: half of its time cannot be saved.
    overrides = ["stages.0.structured.budget=0.9"] if "latency" in name else []
    overrides += ["steps=4"] if name.startswith("recover") else []
    recipe = load_recipe(name, overrides)
    report = sparsify(
        model, recipe, data=data, evaluate=lambda net: float(net(data[0]).detach().abs().sum())
    )
    assert report.quality_dense is not None
    assert report.quality_sparse is not None
    assert report.bytes_sparse < report.bytes_dense
    assert report.ms_dense is not None
    masked = [m for m in model.modules() if isinstance(m, MaskedWeight)]
    if any(stage.prune for stage in recipe.stages):
        assert len(masked) == len(report.layers) > 0
        sparsity = [stage.prune for stage in recipe.stages if stage.prune][-1].sparsity
        if sparsity is not None:
            assert report.sparsity == pytest.approx(sparsity, abs=0.01)
    if any(stage.recover for stage in recipe.stages):
        assert any(note.startswith("recovered in 4 steps") for note in report.notes)
    if any(stage.structured for stage in recipe.stages):
        assert any("heads and" in note for note in report.notes)
        small = sum(p.numel() for p in model.layers.parameters())
        assert small < sum(p.numel() for p in tiny().layers.parameters())


def test_layers_that_are_left_alone_by_default_can_be_all_that_is_pruned():
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module("head", torch.nn.Linear(16, 8))
    step = Prune(method="sparsegpt", sparsity=0.5, targets=["head"])
    recipe = Recipe(gossamer=1, stages=(Stage(prune=step),))
    report = sparsify(model, recipe, data=[torch.randn(32, 16)])
    assert report.sparsity == 0.5
    assert report.ms_sparse is not None


def test_a_slim_model_without_a_linear_to_prune_is_reported():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=4, n_inner=64
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(1)
    data = [{"input_ids": torch.randint(40, (4, 12), generator=generator)} for _ in range(4)]
    report = sparsify(model, "structured-mac-50", data=data)
    assert report.bytes_sparse < report.bytes_dense
    assert not report.layers


def test_stages_that_solve_a_layer_twice_keep_their_journals_apart(tmp_path):
    steps = [Prune(method="sparsegpt", sparsity=sparsity) for sparsity in (0.5, 0.75)]
    recipe = Recipe(gossamer=1, stages=tuple(Stage(prune=step) for step in steps))
    data = [torch.randint(50, (6, 12), generator=torch.Generator().manual_seed(1))]
    plain, journalled = tiny(), tiny()
    execute(recipe, plain, data)
    journal = DiskJournal(tmp_path / "journal", {})
    report = execute(recipe, journalled, data, given=StageInput(journal=journal))
    assert report.sparsity == 0.75
    for one, two in zip(plain.parameters(), journalled.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_structured_stage_takes_back_what_held_out_batches_lose_by(monkeypatch):
    from gossamer.runs.stages import structured as structured_stage

    data = [
        torch.randint(50, (6, 12), generator=torch.Generator().manual_seed(i)) for i in range(8)
    ]
    scores = iter([1.0, 2.0, 3.0, 4.0, 5.0])  # every stage loses against the one before it
    monkeypatch.setattr(structured_stage, "_mean_loss", lambda *_: next(scores))
    report = sparsify(tiny(), load_recipe("structured-mac-50"), data=data)
    assert report.notes[-1] == (
        "Taken back, because held-out batches lost by it: rearrange, tune, refit."
    )


def test_rounds_reach_the_same_budget():
    data = [
        torch.randint(50, (6, 12), generator=torch.Generator().manual_seed(i)) for i in range(8)
    ]
    model = tiny()
    report = sparsify(
        model, load_recipe("structured-mac-50", ["stages.0.structured.rounds=2"]), data=data
    )
    assert any("of the blocks' macs are left" in note for note in report.notes)
    assert float(report.notes[0].split("%")[0]) <= 50.0


@pytest.mark.parametrize(
    ("count", "part", "held"), [(3, 0.25, 0), (8, 0.25, 2), (5, 0.5, 2), (8, 0, 0)]
)
def test_held_out_batches_are_spread_and_disjoint(count, part, held):
    from gossamer.pruning.calibration.flow import as_batches
    from gossamer.runs.stages.structured import hold_out

    batches = as_batches([torch.zeros(1, i + 1) for i in range(count)], "test")
    used, chosen = hold_out(batches, part)
    assert len(chosen) == held
    assert len(used) + len(chosen) == count
    assert not {id(batch) for batch in used} & {id(batch) for batch in chosen}
