# SPDX-License-Identifier: Apache-2.0
"""TASC on real ranks under DDP does what simulated ranks say, whatever the buckets; resuming."""

from pathlib import Path

import pytest
import torch
from grid_ranks import run_on_ranks
from safetensors.torch import load_file
from torch import nn

from gossamer.testing.simulated_ranks import SimulatedRanks
from gossamer.training.distributed.tasc import RowAdamW, RowSGD
from gossamer.training.distributed.tasc.direct import tasc_hook

RANKS, STEPS, STOP = 3, 9, 5
SETTINGS = {"density": 0.5, "start": 2, "max_age": 5}


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 60), nn.Tanh(), nn.Linear(60, 30)).double()


def batch(step, rank):
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(4, 20, generator=generator, dtype=torch.float64)
    return x, x[:, :1].cos().expand(-1, 30)


def loss_of(model, step, rank):
    x, y = batch(step, rank)
    return nn.functional.mse_loss(model(x), y)


def work(folder):
    """What each rank does: straight through, with small buckets, and with a stop in between."""
    import torch.distributed as dist
    from safetensors.torch import save_file
    from torch.nn.parallel import DistributedDataParallel

    from gossamer.training.distributed.tasc import attach

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, found = dist.get_rank(), {}

    def started(through_buckets=False, **ddp):
        model = build()
        wrapped = DistributedDataParallel(model, **ddp)
        tasc = attach(wrapped, through_buckets=through_buckets, min_gain=0, **SETTINGS)
        return model, wrapped, tasc, RowAdamW(model.parameters(), tasc, 0.01)

    def go(model, wrapped, tasc, optimizer, steps):
        chosen = []
        for step in steps:
            optimizer.zero_grad()
            loss_of(wrapped, step, rank).backward()
            optimizer.step()
            if tasc.structure() is not None:
                chosen.append(tasc.structure())
        return chosen

    cases = {
        "plain": {},
        "bucket": {"through_buckets": True},
        "buckets": {"through_buckets": True, "bucket_cap_mb": 0.005},
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
    }
    for name, ddp in cases.items():
        run = started(**ddp)
        chosen = go(*run, range(STEPS))
        found |= {f"{name}.{i}": p.detach().clone() for i, p in enumerate(run[0].parameters())}
        found[f"{name}.chosen"] = torch.stack(chosen)

    first = started()
    go(*first, range(STOP))
    state, moments = first[2].state_dict(), first[3].state_dict()
    weights = first[0].state_dict()
    model, wrapped, tasc, optimizer = started()
    model.load_state_dict(weights)
    tasc.load_state_dict(state)
    optimizer.load_state_dict(moments)
    go(model, wrapped, tasc, optimizer, range(STOP, STEPS))
    found |= {f"resumed.{i}": p.detach().clone() for i, p in enumerate(model.parameters())}
    save_file(found, Path(folder) / f"{rank}.safetensors")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What all ranks found, in one start."""
    folder = tmp_path_factory.mktemp("ranks")
    run_on_ranks(work, [(RANKS, str(folder))], RANKS)
    return [load_file(folder / f"{rank}.safetensors") for rank in range(RANKS)]


def simulated(row_optimizer=RowAdamW):
    model = build()
    together = SimulatedRanks(model, RANKS, **SETTINGS)
    optimizer = row_optimizer(model.parameters(), together.ranks[0], 0.01)
    chosen = []
    for step in range(STEPS):
        gradients = [
            torch.autograd.grad(loss_of(model, step, rank), list(model.parameters()))
            for rank in range(RANKS)
        ]
        for param, mean in zip(model.parameters(), together.reduce(gradients), strict=True):
            param.grad = mean
        optimizer.step()
        if together.ranks[0].structure() is not None:
            chosen.append(together.ranks[0].structure())
            for other in together.ranks[1:]:
                assert torch.equal(other.structure(), chosen[-1])
    return [p.detach() for p in model.parameters()], torch.stack(chosen)


@pytest.mark.parametrize("case", ["plain", "bucket", "buckets", "views", "static"])
def test_real_ranks_do_what_simulated_ones_say(ranks, case):
    params, chosen = simulated()
    assert 0 < chosen.double().mean() < 1
    for found in ranks:
        assert torch.equal(found[f"{case}.chosen"].bool(), chosen)
        for index, param in enumerate(params):
            torch.testing.assert_close(found[f"{case}.{index}"], param, rtol=0, atol=1e-12)


def test_a_resumed_run_has_the_same_bits(ranks):
    for found in ranks:
        for index in range(4):
            assert torch.equal(found[f"resumed.{index}"], found[f"plain.{index}"])


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_sent_and_left_is_what_came_from_all_ranks(num_ranks):
    model = build()
    together = SimulatedRanks(model, num_ranks, **SETTINGS)
    params = list(model.parameters())
    came = [torch.zeros_like(p) for p in params]
    sent = [torch.zeros_like(p) for p in params]
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        gradients = [
            [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params]
            for _ in range(num_ranks)
        ]
        for mine in gradients:
            for total, gradient in zip(came, mine, strict=True):
                total += gradient / num_ranks
        for total, mean in zip(sent, together.reduce(gradients), strict=True):
            total += mean
    for index, name in ((0, "0.weight"), (2, "2.weight")):
        left = sum(rank.residuals()[name] for rank in together.ranks) / num_ranks
        torch.testing.assert_close(sent[index].detach() + left, came[index].detach())
    torch.testing.assert_close(sent[1], came[1])


def test_a_bad_number_on_one_rank_stops_the_step_on_all():
    model = build()
    together = SimulatedRanks(model, 3, **SETTINGS)
    params = list(model.parameters())
    good = [[torch.ones_like(p) for p in params] for _ in range(3)]
    for _ in range(4):
        together.reduce([[g.clone() for g in mine] for mine in good])
    ages = [rank.state_dict()["parameters"]["0.weight"]["ages"] for rank in together.ranks]
    bad = [[g.clone() for g in mine] for mine in good]
    bad[1][0][5, 3] = float("nan")
    assert all(torch.isnan(mean).all() for mean in together.reduce(bad))
    for rank, before in zip(together.ranks, ages, strict=True):
        state = rank.state_dict()["parameters"]["0.weight"]
        assert torch.equal(state["ages"], before + 1)
        assert torch.isfinite(state["residual"]).all()
    assert all(torch.isfinite(mean).all() for mean in together.reduce(good))


def test_hook_and_row_sgd_are_what_they_say():
    assert tasc_hook.__code__.co_varnames[:2] == ("state", "bucket")
    params, _ = simulated(RowSGD)
    assert all(torch.isfinite(param).all() for param in params)
