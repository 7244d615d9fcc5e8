# SPDX-License-Identifier: Apache-2.0
"""Races on clocks that are made up: contenders cost what a test says, neighbours what it adds."""

import numpy as np
import pytest
import torch

from gossamer.ops.timing import Duel, contest, duel, fair_clock, load, racing, spread_of
from gossamer.ops.timing.load import Load, LoadWatch, Look
from gossamer.ops.timing.racing import run_contest

# The tests' own machine is kept out of all others.
REAL_LOOK = load.look


class FakeMachine:
    """Clocks that go on when work is done; neighbours make the wall clock go on, too.

    `noise` says how many more seconds a call takes on the processor (cold caches).
    """

    def __init__(self, waits=lambda: 0.0, noise=lambda: 0.0, running=1):
        self.cpu = self.wall = 0.0
        self.switches = 0
        self._waits, self._noise, self._running = waits, noise, running

    def work(self, seconds):
        def call():
            taken, waited = seconds + self._noise(), self._waits()
            self.cpu += taken
            self.wall += taken + waited
            self.switches += waited > 0

        return call

    def look(self):
        return Look(self.wall, self.cpu, self.switches, self._running, 0.0)

    def watch(self, threads=1):
        return LoadWatch(threads, look_now=self.look, cores=2, every=0.0)

    def contest(self, costs, budget=0.03):
        calls = [self.work(seconds) for seconds in costs]
        clocks = {"clock": lambda: self.cpu, "wall": lambda: self.wall}
        return run_contest(calls, budget, watch=self.watch(), **clocks)


def fastest(race):
    return race.us.index(min(race.us))


def test_a_quiet_race_gives_the_costs_and_says_that_it_was_quiet():
    race = FakeMachine().contest([3e-3, 1e-3, 1.2e-3])
    assert race.us == pytest.approx((3000, 1000, 1200))
    assert race.spread == pytest.approx(0, abs=1e-9)
    assert race.load.is_quiet


@pytest.mark.parametrize("seed", range(20))
def test_the_fastest_wins_beside_neighbours(seed):
    """Slow moments that last for many calls: what a duel of another moment would have mixed up."""
    rng = np.random.default_rng(seed)
    slow = {"left": 0}

    def noise():
        if slow["left"] == 0 and rng.random() < 0.3:
            slow["left"] = int(rng.integers(1, 5))
        slow["left"] = max(slow["left"] - 1, 0)
        return rng.uniform(0.5e-3, 2e-3) if slow["left"] else rng.uniform(0, 2e-5)

    machine = FakeMachine(lambda: rng.choice((0.0, 4e-3, 8e-3)), noise, running=5)
    costs = [3e-3, 1.15e-3, 1e-3, 1.4e-3]
    race = machine.contest(costs)
    assert costs[fastest(race)] == 1e-3
    assert not race.load.is_quiet
    assert "4.0 other programs on 2 cores" in str(race.load)
    assert "waiting for a core" in str(race.load)


def test_the_clock_of_the_processor_does_not_see_neighbours():
    machine = FakeMachine(lambda: 50e-3)
    race = machine.contest([2e-3, 1e-3])
    assert race.us == pytest.approx((2000, 1000))
    assert race.load.waiting > 0.9


def test_what_is_clearly_slower_drops_out():
    ran = {"slow": 0, "fast": 0}
    machine = FakeMachine()
    costs = {"slow": 9e-3, "fast": 1e-3}

    def counted(name):
        work = machine.work(costs[name])
        return lambda: (work(), ran.update({name: ran[name] + 1}))

    run_contest(
        [counted("slow"), counted("fast")], 0.05, lambda: machine.cpu, machine.watch(),
        wall=lambda: machine.wall,
    )  # fmt: skip
    assert ran["slow"] == 6
    assert ran["fast"] > 30


def test_a_race_whose_parts_disagree_goes_on_longer_and_says_how_far():
    steady, shaky = FakeMachine(), FakeMachine(noise=np.random.default_rng(1).random)
    steady.contest([1e-3, 1e-3])
    race = shaky.contest([1e-3, 1e-3])
    assert shaky.cpu > 2 * steady.cpu
    assert race.spread > 0.05


def test_nobody_waits_for_ever_on_a_busy_machine():
    machine = FakeMachine(lambda: 1.0)
    machine.contest([1e-3, 1e-3])
    # A round that does not count and five that do.
    assert machine.wall == pytest.approx(12 * 1.001)


def test_a_race_that_is_given_up_ends_after_the_first_rounds():
    ends = []
    for give_up in (lambda: False, lambda: True):
        machine = FakeMachine()
        calls = [machine.work(20e-3), machine.work(20e-3)]
        clocks = {"clock": lambda machine=machine: machine.cpu, "watch": machine.watch()}
        run_contest(
            calls, 1.0, give_up=give_up, wall=lambda machine=machine: machine.wall, **clocks
        )
        ends.append(machine.wall)
    assert ends[1] == pytest.approx(12 * 20e-3)
    assert ends[0] > 2.0


def test_spread_is_between_the_best_times_of_parts():
    assert spread_of([1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0]) == 0
    assert spread_of([2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 1.0
    assert spread_of([1.0]) == spread_of([]) == 0


def test_a_duel_says_how_far_to_trust_it():
    machine = FakeMachine(lambda: 4e-3, running=4)
    found = duel(
        machine.work(2e-3), machine.work(1e-3), clock=lambda: machine.cpu, watch=machine.watch()
    )
    assert found.ratio == pytest.approx(2)
    assert found.doubt.startswith("busy machine: 3.0 other programs")
    assert Duel(2.0, 1.0).doubt == ""


def test_one_thread_runs_on_the_clock_of_the_processor(monkeypatch):
    for threads, name in ((1, "process_time"), (2, "perf_counter")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert fair_clock() is getattr(racing.time, name)


def test_without_room_for_its_threads_a_race_is_run_on_one(monkeypatch):
    threads = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))
    seen = []

    def run(calls, budget, clock, watch, give_up=None):
        seen.append(threads[0])
        return racing.Race((2.0, 1.0), 0.0, Load(others=others, cores=2, threads=threads[0]))

    monkeypatch.setattr(racing, "run_contest", run)
    others = 4.0
    race = contest(lambda: None, lambda: None)
    assert (seen, race.threads, threads) == ([2, 1], 1, [2])
    assert not race.load.is_quiet
    others = 0.0
    assert contest(lambda: None, lambda: None).threads is None
    assert seen == [2, 1, 2]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Load(others=0.4, cores=2), None),
        (Load(others=0.6, cores=2), "0.6 other programs on 2 cores"),
        (Load(others=10, cores=64), None),
        (Load(waiting=0.3), "30% of the time spent waiting for a core"),
        (Load(switches=100), "pushed off a core 100 times a second"),
        (Load(stolen=0.1), "10% of the time stolen by the host"),
    ],
)
def test_signs_of_a_busy_machine(found, words):
    assert found.is_quiet == (words is None)
    assert str(found) == ("quiet" if words is None else f"busy machine: {words}")


def test_a_watch_averages_its_looks():
    moments = iter(
        [
            Look(0.0, 0.0, 10, 1, 0.0),
            Look(0.5, 0.5, 10, 3, 0.0),
            Look(1.0, 0.75, 60, 5, 0.21),
        ]
    )
    watch = LoadWatch(1, look_now=lambda: next(moments), cores=2, every=0.0)
    watch.look()
    found = watch.load()
    assert found.others == 3.0
    assert found.waiting == 0.25
    assert found.switches == 50
    assert found.stolen == pytest.approx(0.1)  # of two cores, but for one tick


def test_work_of_other_processes_is_no_waiting_of_this_one():
    moments = iter([Look(0.0, 0.0, 0, 1), Look(1.0, 0.01, 90, 1)])
    watch = LoadWatch(1, is_own=False, look_now=lambda: next(moments), cores=2)
    assert watch.load().is_quiet


def test_systems_that_do_not_tell_are_taken_as_quiet(monkeypatch, tmp_path):
    monkeypatch.setattr(load, "_LOADAVG", tmp_path / "missing")
    moment = REAL_LOOK()
    assert moment.running is None
    assert moment.stolen is None
    watch = LoadWatch(2, look_now=lambda: moment, cores=2)
    assert watch.load().reasons == Load().reasons
