import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.errors import InputError
from gossamer.running.decoder import Sampling
from gossamer.running.decoder.sampling import Sampler, probabilities

LOGITS = torch.tensor([0.1, 2.0, 1.0, -1.0])


def test_temperature_zero_takes_the_likeliest():
    assert Sampler(Sampling())(LOGITS) == 1


def test_probabilities_are_the_softmax_of_what_is_left():
    wanted = (LOGITS.double() / 0.7).softmax(0)
    assert torch.allclose(probabilities(LOGITS, Sampling(temperature=0.7)), wanted)
    two = probabilities(LOGITS, Sampling(temperature=0.7, top_k=2))
    assert two[[0, 3]].tolist() == [0, 0]
    assert torch.allclose(two[[1, 2]], wanted[[1, 2]] / wanted[[1, 2]].sum())


def test_top_p_keeps_the_token_that_crosses_the_border():
    chances = LOGITS.double().softmax(0)
    kept = probabilities(LOGITS, Sampling(temperature=1.0, top_p=float(chances[1]) + 0.01))
    assert (kept > 0).tolist() == [False, True, True, False]
    only = probabilities(LOGITS, Sampling(temperature=1.0, top_p=1e-9))
    assert only.tolist() == [0, 1, 0, 0]


def test_draws_follow_the_probabilities():
    sampler = Sampler(Sampling(temperature=1.0, seed=5))
    counts = torch.bincount(torch.tensor([sampler(LOGITS) for _ in range(2000)]), minlength=4)
    assert torch.allclose(counts / 2000, LOGITS.softmax(0), atol=0.04)


@pytest.mark.parametrize(
    "fields", [{"temperature": -1}, {"temperature": float("inf")}, {"top_k": 0}, {"top_p": 0}]
)
def test_bad_settings(fields):
    with pytest.raises(InputError, match=next(iter(fields))):
        Sampling(**fields)


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**64, 10**30])
def test_a_seed_of_more_than_64_bits_is_refused(seed):
    with pytest.raises(InputError, match="seed must fit into 64 bits"):
        Sampling(seed=seed)


EDGES = [5e-324, 2.3e-308, 1e-310, 1e-45, 1e-12, 0.5, 1.0, 2.0, 1e30, 1.7e308]
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.sampled_from([float("-inf"), 3.4e38, -3.4e38, 1e-45, 0.0, 5.0]),
)


@given(
    logits=st.lists(numbers, min_size=1, max_size=12),
    finite=st.floats(-(2.0**100), 2.0**100, width=32),
    temperature=st.one_of(st.sampled_from(EDGES), st.floats(5e-324, 1.7e308)),
    top_p=st.one_of(st.sampled_from([5e-324, 1e-17, 1.0]), st.floats(5e-324, 1.0)),
    top_k=st.one_of(st.none(), st.integers(1, 14), st.sampled_from([2**31, 2**63, 10**30])),
    seed=st.one_of(st.integers(-(2**63), 2**64 - 1), st.sampled_from([-(2**63), 2**64 - 1])),
)
@settings(max_examples=300, deadline=None)
def test_any_settings_draw_a_token_that_may_be_drawn(
    logits, finite, temperature, top_p, top_k, seed
):
    logits_V = torch.tensor([*logits, finite])
    chosen = Sampling(temperature, top_k, top_p, seed)
    chances = probabilities(logits_V, chosen)
    assert bool(torch.isfinite(chances).all())
    assert bool((chances >= 0).all())
    assert float(chances.sum()) == pytest.approx(1.0)
    assert int((chances > 0).sum()) <= (top_k or len(logits_V))
    assert float(chances[Sampler(chosen)(logits_V)]) > 0
    likeliest = logits_V == logits_V.max()
    assert float(chances[likeliest].sum()) >= float(chances[~likeliest].sum()) / len(logits_V)


def test_no_top_p_leaves_out_nothing():
    logits_V = torch.tensor([0.0] + [-40.0] * 5)
    assert bool((probabilities(logits_V, Sampling(temperature=1.0)) > 0).all())
