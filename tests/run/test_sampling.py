import pytest
import torch

from gossamer.errors import InputError
from gossamer.run.sampling import Sampler, Sampling, probabilities

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
