"""A few hundred cases of the differential harness; `make differential` runs many more."""

import pytest
import torch
from cases import run_case

# Far from 0, where long runs begin, so that they see cases that this has not seen.
FIRST, CASES, EXPORTED = 10_000_000, 200, 4


@pytest.fixture(autouse=True)
def as_the_script_runs_it(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, 50))
def test_every_form_of_a_random_model_gives_the_result_of_float64_dense(first):
    outcomes = [run_case(seed) for seed in range(first, first + 50)]
    assert [str(outcome) for outcome in outcomes if outcome.faults] == []
    assert sum(outcome.steps["compile"] for outcome in outcomes) > 30, "most cases reach the end"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(FIRST, FIRST + EXPORTED))
def test_exported_and_traced_programs_do_too(seed):
    outcome = run_case(seed, export=True)
    assert outcome.faults == []


def test_a_wrong_result_is_seen(monkeypatch):
    """The harness itself: a compiled model that is off by a little is a fault."""
    import gossamer

    compiled = gossamer.compile

    def slightly_off(model, **options):
        fast = compiled(model, **options)
        fast.register_forward_hook(lambda module, args, output: output * 1.001)
        return fast

    monkeypatch.setattr(gossamer, "compile", slightly_off, raising=False)
    outcomes = [run_case(seed) for seed in range(FIRST, FIRST + 10)]
    assert any("compiled" in fault for outcome in outcomes for fault in outcome.faults)
