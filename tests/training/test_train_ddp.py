# SPDX-License-Identifier: Apache-2.0
"""Stock DDP on two gloo ranks: only kept values travel, and the result is that of one process."""

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import gossamer.nn as gnn
from gossamer.errors import InputError
from gossamer.nn.surgery.compaction import compact
from gossamer.patterns import Unstructured
from gossamer.training.distributed.groups import keep_groups

WORLD = 2
STEPS = 4
MODES = ("jit", "resident", "kernel")


def build(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 32)).double()
    for index in (0, 2):
        mask = torch.rand(model[index].weight.shape) < 0.25
        model[index] = gnn.MaskedLinear.from_dense(model[index], mask, Unstructured())
    compact(model, mode=mode)
    return model


def data(step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 64, generator=generator, dtype=torch.float64)
    return x, x[:, :32].cos()


def run(model, shard=slice(None)):
    """AdamW steps with two forwards per backward; parameters at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for step in range(STEPS):
        x, y = (t[shard] for t in data(step))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) + nn.functional.mse_loss(model(-x), y)
        loss.backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def worker(rank, folder):
    torch.set_num_threads(1)
    for mode in MODES:
        train_rank(rank, Path(folder) / mode, mode)


def train_rank(rank, folder, mode):
    dist.init_process_group(
        "gloo",
        init_method=(folder / "rendezvous").as_uri(),
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    try:
        wrapped = DistributedDataParallel(build(mode))
        with pytest.raises(InputError, match="DistributedDataParallel"):
            compact(wrapped)
        counted = []

        def count(state, bucket):
            counted.append(bucket.buffer().numel())
            return allreduce_hook(state, bucket)

        wrapped.register_comm_hook(None, count)
        shard = slice(rank * 4, rank * 4 + 4)
        result = run(wrapped, shard)
        found = {str(index): tensor for index, tensor in enumerate(result)}
        found["counted"] = torch.tensor(counted)
        save_file(found, folder / f"rank{rank}.safetensors")
    finally:
        keep_groups()
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What ranks found in all modes; interpreters of their own begin and end once."""
    folder = tmp_path_factory.mktemp("ranks")
    for mode in MODES:
        (folder / mode).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        context = mp.spawn(worker, (str(folder),), nprocs=WORLD, join=False)
    try:
        finished = any(context.join(timeout=60) for _ in range(WORLD))
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    assert finished
    return folder


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", MODES)
def test_two_ranks_reduce_nnz_elements_and_equal_one_process(folder, mode):
    model = build(mode)
    expected = run(model)
    per_step = sum(p.numel() for p in model.parameters())
    assert per_step == model[0].nnz + model[2].nnz + 96 + 32
    for rank in range(WORLD):
        found = load_file(folder / mode / f"rank{rank}.safetensors")
        assert int(found.pop("counted").sum()) == STEPS * per_step
        for index, tensor in enumerate(expected):
            torch.testing.assert_close(found[str(index)], tensor, rtol=0, atol=1e-12)
