# SPDX-License-Identifier: Apache-2.0
"""`shrink` on click models: smaller tables beside smaller MLPs, measured on packed models."""

import copy

import pytest
import torch
from test_click_workload import rows

import gossamer
from gossamer.errors import RecipeError
from gossamer.nn import quantize_tables
from gossamer.recipes import make_recipe
from gossamer.runs.stages import StageInput
from gossamer.runs.stages.round import run_round_stage
from gossamer.search import shrink
from gossamer.search.candidates import Mask
from gossamer.search.workloads import load_workload
from gossamer.zoo import DLRM

ROWS = (500, 300, 400)


def model():
    torch.manual_seed(0)
    return DLRM(2, ROWS, width=16, bottom=(16,), top=(32,)).eval()


def recipe_of(stage):
    return make_recipe({"gossamer": 1, "stages": [stage]}, "test")


def rounded(net, data, **how):
    work = load_workload(net, None, data)
    recipe = recipe_of({"round": {"layers": None, "tables": how}})
    made = copy.deepcopy(net)
    batches, samples = work.batches(), work.samples() if recipe.counts_ids else None
    given = StageInput(batches=batches, samples=samples)
    return made, run_round_stage(made, recipe.stages[0].step, given)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("granularity", ["row", "table"])
def test_tables_become_codes(bits, granularity):
    """Every number within half a step of float64's, which the largest of its row decides."""
    net, data = model(), rows(40)
    made, outcome = rounded(net, data, bits=bits, granularity=granularity)
    assert outcome.notes == [f"rounded 3 tables to {bits} bits (packed)."]
    for table, stock in zip(made.tables, net.tables, strict=True):
        assert (table.form, table.bits, table.granularity) == ("packed", bits, granularity)
        weight = stock.weight.detach().double()
        tops = weight.abs().amax(1, keepdim=True) if granularity == "row" else weight.abs().max()
        step = tops / (2 ** (bits - 1) - 1)
        error = (table.dense_weight().double() - weight).abs()
        assert bool((error <= step * 0.5 * (1 + 1e-5)).all())
    assert made(*data.inputs()).shape == (40,)


def test_rare_ids_share_a_row():
    """Counted on all samples to fit to; ids that occur keep their rows to the bit."""
    net, data = model(), rows(200)
    made, outcome = rounded(net, data, bits=32, min_count=2)
    work = load_workload(net, None, data)
    fitted = [batch.arguments[1] for batch in work.samples().in_order(64)]
    ids = torch.cat(fitted)
    for place, (table, stock) in enumerate(zip(made.tables, net.tables, strict=True)):
        counts = torch.bincount(ids[:, place], minlength=len(stock.weight))
        often = counts >= 2
        assert 0 < int(often.sum()) < 6
        assert len(table.rows().data) == int(often.sum()) + 1
        dense = table.dense_weight()
        assert torch.equal(dense[often], stock.weight[often])
        shared = stock.weight[~often].mean(0).expand(int((~often).sum()), -1)
        torch.testing.assert_close(dense[~often], shared)
    before, after = sum(ROWS), sum(len(table.rows().data) for table in made.tables)
    assert f"{before} rows to {after}" in outcome.notes[0]


def test_tables_that_were_trained_are_packed_as_they_are():
    net, data = model(), rows(40)
    quantize_tables(net, bits=4)
    expected = net(*data.inputs())
    made, _ = rounded(net, data, bits=None)
    assert all(table.form == "packed" and table.bits == 4 for table in made.tables)
    assert torch.equal(made(*data.inputs()), expected)
    with pytest.raises(gossamer.errors.InputError, match=r"tables.0: .* in 4 bits by table"):
        rounded(net, data, bits=8)
    with pytest.raises(gossamer.errors.InputError, match="say to how many bits"):
        rounded(model(), data, bits=None)


def test_a_table_that_is_multiplied_with_is_refused():
    net = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False))
    net[1].weight = net[0].weight
    step = recipe_of({"round": {"layers": None, "tables": {"bits": 4}}})
    with pytest.raises(gossamer.errors.InputError, match="multiplies with the rows of 0"):
        run_round_stage(net, step.stages[0].step, StageInput())
    both = {"round": {"embeddings": "int8", "tables": {"bits": 4}}}
    with pytest.raises(RecipeError, match="say one of the two"):
        recipe_of(both)


def test_a_search_has_the_front_of_tables(tmp_path, monkeypatch):
    """All kinds of candidates, chosen on one part, told of another; the smallest is an eighth."""
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    monkeypatch.setattr("gossamer.search.rungs._TABLE_STEPS", 4)
    result = shrink(
        model(),
        rows(600),
        tmp_path / "small",
        max_loss=1.0,
        # With a limit in bytes no mask is left out by its time.
        max_bytes=40_000,
        budget_minutes=10.0,
        masks=[Mask("unstructured", 0.5)],
        rates=[1e-3],
    )
    sizes = {point.candidate: point.size for point in result.points}
    trained = "tables-int4-trained-4-r0.001"
    names = {"dense", "dense-bf16", "dense-int8", "tables-int8", "tables-int4", trained}
    names |= {"tables-folded-1", "tables-folded-1-int4", "oneshot-50"}
    assert sizes.keys() >= names
    table_bytes = 4 * 16 * sum(ROWS)
    beside = sizes["dense"] - table_bytes
    assert sizes["dense-bf16"] < 0.6 * sizes["dense"]
    assert sizes["tables-int8"] - beside == pytest.approx(sum(ROWS) * (16 + 4), rel=0.1)
    assert sizes["tables-int4"] - beside == pytest.approx(sum(ROWS) * (8 + 4), rel=0.1)
    assert sizes[trained] == sizes["tables-int4"]
    assert sizes["tables-folded-1-int4"] < sizes["tables-int4"]
    assert result.met
    for name in ("tables-int4", trained, "tables-folded-1-int4", "oneshot-50"):
        again = gossamer.load(result.work / name)
        assert all(table.form == "packed" and table.bits == 4 for table in again.tables)
