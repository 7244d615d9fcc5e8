# SPDX-License-Identifier: Apache-2.0
"""A store that never answers is given up; one that answers, or a pause in between, is not."""

import threading

import torch.distributed as dist

from gossamer.training.distributed.processes.watch import GuardedStore

INTERVAL = 0.02


class MuteStore:
    """As a store behind a cut cable: calls end when the test does."""

    def __init__(self):
        self.over = threading.Event()

    def check(self, keys):
        self.over.wait(60)
        return False


def guarded(store, limit):
    given_up = threading.Event()
    guard = GuardedStore(store, interval=INTERVAL, limit=limit, give_up=given_up.set)
    guard.start()
    return guard, given_up


def test_a_call_without_an_answer_is_given_up():
    mute = MuteStore()
    guard, given_up = guarded(mute, limit=0.2)
    caller = threading.Thread(target=guard.check, args=(["beat"],))
    caller.start()
    assert given_up.wait(60)
    mute.over.set()
    caller.join()


def test_calls_that_return_are_not():
    guard, given_up = guarded(dist.HashStore(), limit=INTERVAL)
    guard.set("beat", "1")
    assert guard.get("beat") == b"1"
    assert guard.check(["beat"])
    assert guard.add("left", 2) == 2
    assert guard.compare_set("cause", "", "first") == b"first"
    assert guard.compare_set("cause", "", "second") == b"first"
    # Many looks, none of which finds a call.
    assert not given_up.wait(10 * INTERVAL)
    guard.stop()


def test_a_guard_that_was_stopped_gives_nothing_up():
    mute = MuteStore()
    guard, given_up = guarded(mute, limit=INTERVAL)
    guard.stop()
    caller = threading.Thread(target=guard.check, args=(["beat"],))
    caller.start()
    assert not given_up.wait(10 * INTERVAL)
    mute.over.set()
    caller.join()
