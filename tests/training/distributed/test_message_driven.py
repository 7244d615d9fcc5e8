# SPDX-License-Identifier: Apache-2.0
"""The state machine alone, and on a fake network under many seeds."""

import random

import pytest

from gossamer.errors import DistributedError, InputError
from gossamer.testing.fake_network import Conditions, FakeNetwork, rough_weather
from gossamer.training.distributed.pipeline import Work
from gossamer.training.distributed.pipeline.message_driven import MessageDriven
from gossamer.training.distributed.pipeline.stage import most_held


class Chain:
    """Stages that scale a number; every sum of floats depends on its order.

    The loss of microbatch k is (k + 1) / 3 times the output.
    """

    def __init__(self, num_stages, num_microbatches):
        numbers = random.Random(0)  # noqa: S311
        self.weights = [numbers.uniform(0.5, 1.5) for _ in range(num_stages)]
        self.inputs = [numbers.uniform(-1, 1) for _ in range(num_microbatches)]
        self.saved = {}
        self.gradients = [0.0] * num_stages
        self.held = [0] * num_stages
        self.most_held = [0] * num_stages

    def forward(self, stage, microbatch, message):
        x = self.inputs[microbatch] if stage == 0 else message
        self.saved[stage, microbatch] = x
        self.held[stage] += 1
        self.most_held[stage] = max(self.most_held[stage], self.held[stage])
        return x * self.weights[stage]

    def backward(self, stage, microbatch, message):
        gradient = (microbatch + 1) / 3 if message is None else message
        self.gradients[stage] += gradient * self.saved.pop((stage, microbatch))
        self.held[stage] -= 1
        return gradient * self.weights[stage]


def in_order(num_stages, num_microbatches):
    """What one process computes, microbatch after microbatch."""
    chain = Chain(num_stages, num_microbatches)
    for microbatch in range(num_microbatches):
        message = None
        for stage in range(num_stages):
            message = chain.forward(stage, microbatch, message)
        message = None
        for stage in reversed(range(num_stages)):
            message = chain.backward(stage, microbatch, message)
    return chain.gradients


def run(num_stages, num_microbatches, slack, seed, conditions):
    chain = Chain(num_stages, num_microbatches)
    stages = [MessageDriven(i, num_stages, num_microbatches, slack) for i in range(num_stages)]
    network = FakeNetwork(stages, conditions, seed, chain)
    network.run()
    return chain, network


def check_seeds(seeds):
    expected = {}
    for seed in seeds:
        numbers = random.Random(seed)  # noqa: S311
        size = numbers.randint(1, 6), numbers.randint(1, 12)
        slack = numbers.choice((0, 0, 1, 2, 5))
        weather = rough_weather(numbers.choice((0.01, 1.0, 10.0)), stall_rate=numbers.random() / 4)
        chain, _ = run(*size, slack, seed, weather)
        if size not in expected:
            expected[size] = in_order(*size)
        assert chain.gradients == expected[size], f"seed {seed}"  # to the bit
        for stage, held in enumerate(chain.most_held):
            assert held <= min(size[1], size[0] - stage + slack), f"seed {seed}"
        assert not chain.saved


def test_any_weather_gives_the_same_bits_within_the_bound():
    check_seeds(range(300))


@pytest.mark.slow
def test_ten_thousand_seeds():
    check_seeds(range(10_000))


def test_orders_differ_with_the_weather():
    """Otherwise the test above would say nothing."""
    orders = set()
    for seed in range(20):
        _, network = run(3, 6, 1, seed, rough_weather())
        orders.add(tuple(span[:3] for span in network.spans if span.stage == 1))
    assert len(orders) > 5


def test_even_work_takes_the_time_of_1f1b():
    """(microbatches + stages - 1) forwards and backwards."""
    even = Conditions(lambda *_: 1.0, lambda *_: 0.0)
    for num_stages, num_microbatches in ((1, 1), (2, 5), (4, 8), (4, 2)):
        _, network = run(num_stages, num_microbatches, 0, 0, even)
        assert max(span.stop for span in network.spans) == 2 * (num_microbatches + num_stages - 1)
        for stage in range(num_stages):
            assert most_held(network.spans, stage) == min(num_microbatches, num_stages - stage)


def test_the_first_message_runs_first():
    stage = MessageDriven(1, 3, 4, slack=1)
    assert stage.start() is None
    stage.arrive(Work("forward", 0))
    stage.arrive(Work("forward", 1))
    assert stage.start() == ("forward", 0)
    stage.arrive(Work("backward", 0))
    assert stage.start() == ("forward", 1)
    assert stage.start() == ("backward", 0)
    assert stage.held == 1
    assert not stage.finished


def test_a_forward_waits_at_the_bound_and_a_backward_does_not():
    stage = MessageDriven(1, 2, 3, slack=0)
    for microbatch in range(3):
        stage.arrive(Work("forward", microbatch))
    done = [stage.start() for _ in range(7)]
    order = [(way, k) for k in range(3) for way in ("forward", "backward")]
    assert done == [*order, None]
    assert stage.finished


def test_a_message_out_of_order_is_an_error():
    stage = MessageDriven(1, 2, 3)
    stage.arrive(Work("forward", 0))
    with pytest.raises(DistributedError, match=r"stage 1 of 2 .* microbatch 2 where that of 1"):
        stage.arrive(Work("forward", 2))


def test_more_messages_than_microbatches_are_an_error():
    stage = MessageDriven(1, 2, 1)
    stage.arrive(Work("forward", 0))
    with pytest.raises(DistributedError, match="where that of 1 was due"):
        stage.arrive(Work("forward", 1))


def test_a_deadlock_is_noticed():
    class Deaf(MessageDriven):
        def start(self):
            return None

    stages = [MessageDriven(0, 2, 2), Deaf(1, 2, 2)]
    with pytest.raises(DistributedError, match=r"stages \[0, 1\] wait for ever"):
        FakeNetwork(stages, rough_weather()).run()


@pytest.mark.parametrize(("microbatches", "slack"), [(0, 0), (1, -1)])
def test_senseless_sizes_are_refused(microbatches, slack):
    with pytest.raises(InputError, match="at least"):
        MessageDriven(0, 1, microbatches, slack)
