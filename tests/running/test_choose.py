import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from grid_ranks import join, started

from gossamer.errors import InputError
from gossamer.formats import SparseMatrix
from gossamer.ops import Kernel
from gossamer.ops.timing import Duel, Race, duel, race
from gossamer.ops.timing.load import Load
from gossamer.running.choice import Chooser, Contenders, CostKey, CostTable


def kernel(name, precision="fp32", max_tokens=None):
    def run(x, bias, activation):
        return x.new_zeros(x.shape[0], 10)

    return Kernel(name, lambda problem: run, precision=precision, max_tokens=max_tokens)


PANEL = kernel("panel")


def layer(density, kernels=(PANEL,)):
    mask = torch.arange(100).view(10, 10) < round(100 * density)
    weight = torch.ones(10, 10) * mask
    return Contenders(SparseMatrix.from_dense(weight, mask), weight, kernels)


def flipping_timer():
    """A timer whose verdict changes with every call."""
    calls = []

    def timer(first, second):
        calls.append(None)
        return Race((100, 10)) if len(calls) % 2 else Race((10, 100))

    timer.calls = calls
    return timer


def test_a_shape_is_measured_once_even_if_the_timer_flips(tmp_path):
    timer = flipping_timer()
    chooser = Chooser(CostTable(tmp_path / "c.json"), timer)
    kernels = [chooser.choose(layer(0.1), 16).kernel for _ in range(4)]
    assert kernels == ["panel"] * 4
    assert len(timer.calls) == 1


def test_choices_survive_the_process_through_the_cache(tmp_path):
    path, timer = tmp_path / "deep" / "c.json", flipping_timer()
    first = Chooser(CostTable(path), timer)
    choice = first.choose(layer(0.1), 16)
    first.save()
    again = Chooser(CostTable(path), timer).choose(layer(0.1), 16)
    assert again == choice
    assert len(timer.calls) == 1


def test_tokens_density_and_threads_are_measured_apart(tmp_path):
    timer = flipping_timer()
    chooser = Chooser(CostTable(tmp_path / "c.json"), timer)
    for density, tokens in ((0.1, 16), (0.2, 16), (0.1, 17)):
        chooser.choose(layer(density), tokens)
    torch.set_num_threads(2)
    try:
        chooser.choose(layer(0.1), 16)
    finally:
        torch.set_num_threads(1)
    assert len(timer.calls) == 4


def test_sparse_must_win_by_a_margin(tmp_path):
    for times, kernel in ((Race((101, 100)), "dense"), (Race((106, 100)), "panel")):
        chooser = Chooser(CostTable(tmp_path / f"{times.us[0]}.json"), lambda a, b, t=times: t)
        assert chooser.choose(layer(0.5), 1).kernel == kernel


def test_the_best_of_one_race_wins_and_the_next_is_named(tmp_path):
    races = iter([Race((90, 50, 30, 60))])
    chooser = Chooser(CostTable(tmp_path / "c.json"), lambda *calls: next(races))
    contenders = layer(0.2, (kernel("a"), kernel("b"), kernel("c")))
    choice = chooser.choose(contenders, 8)
    assert (choice.kernel, choice.dense_us, choice.sparse_us) == ("b", 90, 30)
    assert choice.why == "3.00x dense; a 1.80x"
    assert chooser.choose(contenders, 8) == choice


def test_kernels_meet_in_one_race_with_dense_first(tmp_path):
    ran = []

    def named(name):
        run = lambda x, bias, activation: ran.append(name)  # noqa: E731
        return Kernel(name, lambda problem: run)

    def timer(*calls):
        for call in calls:
            call()
        return Race(tuple(range(len(calls), 0, -1)))

    chooser = Chooser(CostTable(tmp_path / "c.json"), timer)
    choice = chooser.choose(layer(0.2, (named("a"), named("b"))), 8)
    assert ran == ["a", "b"]
    assert (choice.kernel, choice.dense_us) == ("b", 3)


BUSY = Load(others=4.0, cores=2, waiting=0.6)


def test_a_race_on_a_busy_machine_is_told_but_not_filed(tmp_path):
    path, calls = tmp_path / "c.json", []

    def timer(*contenders):
        calls.append(len(contenders))
        quiet = len(calls) > 1
        return Race((100, 20), 0.01, Load() if quiet else BUSY)

    first = Chooser(CostTable(path), timer)
    choice = first.choose(layer(0.1), 16)
    # Layers alike get the same kernel, and are not raced again.
    assert first.choose(layer(0.1), 16) == choice
    assert len(calls) == 1
    assert choice.kernel == "panel"
    assert "4.0 other programs on 2 cores" in choice.doubt
    first.save()
    assert len(CostTable(path)) == 0
    second = Chooser(CostTable(path), timer)
    assert second.choose(layer(0.1), 16).doubt == ""
    second.save()
    assert len(CostTable(path)) == 1
    assert Chooser(CostTable(path), None).choose(layer(0.1), 16).spread == 0.01
    assert len(calls) == 2


def test_another_set_of_kernels_is_another_race(tmp_path):
    calls = []

    def timer(*contenders):
        calls.append(len(contenders))
        return Race((100, *(20 + i for i in range(len(contenders) - 1))))

    chooser = Chooser(CostTable(tmp_path / "c.json"), timer)
    for kernels in ((PANEL,), (PANEL, kernel("new")), (PANEL,)):
        assert chooser.choose(layer(0.1, kernels), 16).kernel == "panel"
    assert calls == [2, 3]


def test_a_race_on_fewer_threads_says_so(tmp_path):
    race = Race((100, 20), 0.0, BUSY, threads=1)
    chooser = Chooser(CostTable(tmp_path / "c.json"), lambda *calls: race)
    assert chooser.choose(layer(0.1), 16).why == "5.00x dense; raced on 1 thread"


def test_kernels_for_few_tokens_are_not_measured_with_many(tmp_path):
    chooser = Chooser(CostTable(tmp_path / "c.json"), lambda first, second: Race((100, 10)))
    contenders = layer(0.2, (kernel("few", max_tokens=16),))
    assert chooser.choose(contenders, 16).kernel == "few"
    choice = chooser.choose(contenders, 17)
    assert (choice.kernel, choice.why) == ("dense", "no kernel")


def test_tuning_off_takes_the_precision_that_was_asked_for(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    contenders = layer(0.2, (PANEL, kernel("int8/a", "int8"), kernel("int8/b", "int8")))
    assert Chooser().choose(contenders, 128).kernel == "int8/a"


def test_tuning_off_never_measures_and_is_deterministic(tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    path = tmp_path / "c.json"

    def forbidden(first, second):
        raise AssertionError("measured")

    chooser = Chooser(CostTable(path), forbidden)
    kernels = [chooser.choose(layer(d), t).kernel for d, t in ((0.5, 64), (0.51, 64))]
    assert kernels == ["panel", "dense"]
    assert chooser.choose(layer(0.4), 1).kernel == "dense"
    assert "GOSSAMER_TUNE=off" in chooser.choose(layer(0.1), 1).why
    chooser.save()
    assert not path.exists()


def test_wrong_tune_setting(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "maybe")
    with pytest.raises(InputError, match="GOSSAMER_TUNE"):
        Chooser()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 99, "entries": {}}',
        '{"version": 3, "entries": {"a": 3}}',
        '{"version": 3, "entries": {"a": {"us": [1, 2]}}}',
        '{"version": 2, "entries": {"a": [1, 2]}}',
    ],
)
def test_a_damaged_cache_is_replaced(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    table = CostTable(path)
    key = CostKey("panel", 4, 8, "unstructured", 0.1, 16, 1)
    assert table.get([key]) is None
    table.put([key], Race((2.0, 1.0)))
    table.save()
    assert CostTable(path).get([key]) == Race((2.0, 1.0))
    assert json.loads(path.read_text())["version"] == 3


def test_two_writers_do_not_lose_each_others_measurements(tmp_path):
    path = tmp_path / "c.json"
    one, two = CostTable(path), CostTable(path)
    key_one, key_two = (CostKey("panel", n, 8, "unstructured", 0.1, 16, 1) for n in (1, 2))
    one.put([key_one], Race((1, 1)))
    two.put([key_two], Race((2, 2)))
    one.save()
    two.save()
    table = CostTable(path)
    assert table.get([key_one]) == Race((1, 1))
    assert table.get([key_two]) == Race((2, 2))


def test_an_unwritable_cache_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    CostTable(tmp_path / "file" / "c.json").save()


def test_duel_interleaves_and_takes_minima():
    ticks = iter(range(1000))
    order = []
    result = duel(
        lambda: order.append("a"),
        lambda: order.append("b"),
        min_rounds=3,
        budget_seconds=0,
        clock=lambda: next(ticks),
    )
    assert order == ["a", "b"] * 4  # one untimed round, three timed
    assert result == Duel(1e6, 1e6)
    assert result.ratio == 1.0
    assert Duel(1.0, 0.0).ratio == float("inf")


def test_race_takes_the_minimum_of_each_contender_after_an_untimed_round():
    times = {"a": iter([0.1, 5.0, 3.0, 4.0]), "b": iter([0.1, 1.0, 2.0, float("inf")])}
    order = []

    def contender(name):
        return lambda: order.append(name) or next(times[name])

    best = race([contender("a"), contender("b")], budget_seconds=0, min_rounds=3)
    assert best == [3e6, 1e6]
    assert order == ["a", "b"] * 4
    assert race([]) == []


def _rank_main(rank, folder):
    os.environ["GOSSAMER_CACHE"] = f"{folder}/cache-{rank}"
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    try:
        # Rank 1's clock says the opposite; its verdict must not count.
        race = Race((100, 10), 0.02, BUSY) if rank == 0 else Race((10, 100))
        choices = [
            Chooser(timer=lambda a, b: race).choose(layer(0.1), tokens) for tokens in (1, 128)
        ]
        verdicts = [[choice.kernel, choice.dense_us, choice.doubt] for choice in choices]
        Path(f"{folder}/rank-{rank}").write_text(json.dumps(verdicts))
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_rank_zero_decides_for_all(tmp_path):
    with started(_rank_main, (str(tmp_path),), 2) as ranks:
        join(ranks)
    results = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1)]
    assert results[0] == results[1] == [["panel", 100.0, str(BUSY)]] * 2
