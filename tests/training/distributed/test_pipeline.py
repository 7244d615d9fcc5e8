# SPDX-License-Identifier: Apache-2.0
"""Every schedule on several processes gives what one process gives."""

import os
from datetime import timedelta
from functools import cache
from pathlib import Path

import pipeline_extras
import pytest
import torch
import torch.distributed as dist
from grid_ranks import started
from pipeline_worker import Case, batch_of, build, loss_of, train_alone, train_on_ranks
from safetensors.torch import load_file, save_file

from gossamer.errors import DistributedError
from gossamer.training.distributed.pipeline import LayerPipeline, PipelineSettings

WORLD = 4
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "message-driven")
QUICK = (
    Case("1f1b", 4),
    Case("message-driven", 4),
    Case("zero-bubble", 2, data=2),
    Case("zero-bubble-v", 2),  # first and last stage on one rank: the tied weight is one object
    Case("interleaved", 2),
    Case("1f1b", 2, microbatches=1),
    Case("message-driven", 4, microbatches=1),
)
FULL = (
    *(
        Case(name, ranks, form, data, microbatches)
        for name in SCHEDULES
        for ranks, data, microbatches in ((2, 1, 4), (2, 2, 4), (4, 1, 8))
        for form in ("dense", "compact")
    ),
    *(Case(name, 4, microbatches=1) for name in ("gpipe", "interleaved", "zero-bubble")),
    *(Case(name, 2, microbatches=5) for name in ("gpipe", "1f1b", "message-driven")),
    Case("zero-bubble", 2, stages=2),
    Case("interleaved", 2, stages=4),
    Case("message-driven", 4, mode="resident"),
    Case("zero-bubble", 4, mode="resident"),
)


def worker(rank, folder, cases, extras):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=(Path(folder) / "rendezvous").as_uri(),
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
    )
    try:
        pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        replicas = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        for case in cases:
            pipe = None if case.ranks == WORLD else pairs[rank // 2]
            data = replicas[rank % 2] if case.data == 2 else None
            losses, parameters, output, _ = train_on_ranks(case, pipe, data)
            found = {name: value.detach() for name, value in parameters.items()}
            found |= {"losses": torch.tensor(losses, dtype=torch.float64), "output": output}
            save_file(found, Path(folder) / f"{case}-{rank}.safetensors")
        if extras:
            pipeline_extras.run_all(pairs[rank // 2], replicas[rank % 2])
    finally:
        dist.destroy_process_group()


def run_ranks(folder, cases, *, extras=False):
    with started(worker, (str(folder), cases, extras), WORLD) as context:
        while not context.join(timeout=5):
            pass


@cache
def alone(form, mode, samples):
    return train_alone(Case("1f1b", 1, form, 1, samples, mode=mode))


def check(folder, case):
    losses, expected, model = alone(case.form, case.mode, case.microbatches * case.data)
    names = set()
    for rank in range(WORLD):
        found = load_file(folder / f"{case}-{rank}.safetensors")
        torch.testing.assert_close(found.pop("losses").tolist(), losses, rtol=0, atol=1e-12)
        with torch.no_grad():
            predicted = model(batch_of(99, 3)[0])
        torch.testing.assert_close(found.pop("output"), predicted, rtol=0, atol=1e-11)
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name].detach(), rtol=0, atol=1e-12)
        names |= set(found)
    unique = {name for name, _ in model.named_parameters()}
    assert names >= unique


@pytest.mark.timeout(300)
def test_schedules_equal_one_process(tmp_path):
    run_ranks(tmp_path, QUICK, extras=True)
    for case in QUICK:
        check(tmp_path, case)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_schedules_grids_and_forms_equal_one_process(tmp_path):
    run_ranks(tmp_path, FULL)
    for case in FULL:
        check(tmp_path, case)


def deserter(rank, folder):
    """Rank 1 goes in the middle of a step; rank 0 writes down what it was told."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rendezvous = (Path(folder) / "rendezvous").as_uri()
    patience = timedelta(seconds=60)
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=2, timeout=patience
    )
    calls = []

    def loss(output, target):
        calls.append(target)
        if len(calls) == 8:  # shapes, a whole step of 4, and into the next
            os._exit(0)
        return loss_of(output, target)

    settings = PipelineSettings(4, "message-driven")
    pipeline = LayerPipeline(build("compact"), loss, (batch_of(0, 1)[0],), settings)
    ids, target = batch_of(0, 4)
    pipeline.step(ids, target=target)
    try:
        pipeline.step(ids, target=target)
    except DistributedError as error:
        (Path(folder) / "told").write_text(str(error))
    os._exit(0)  # without a farewell to a group that is broken


@pytest.mark.slow
def test_a_lost_neighbour_is_named(tmp_path):
    with started(deserter, (str(tmp_path),), 2) as context:
        while not context.join(timeout=5):
            pass
    assert (tmp_path / "told").read_text().startswith("pipeline: stage 0 lost a neighbour: ")
