# SPDX-License-Identifier: Apache-2.0
"""Steps of DDP with each way to exchange gradients, timed in turns. Runs on every host of a box.

    python tasc_steps.py SETTINGS

Rank 0 prints seconds and payload bytes of every step, the slowest rank's, as JSON.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[1]))
from gossamer.training.distributed.tasc import RowSGD, attach, join
from support import gradient_hooks
from support.payload import sent_bytes
from support.tasc_training import mlp
from support.turns import any_late, take_slowest

START = 3


class Contender:
    """A model of its own with one way to exchange gradients."""

    def __init__(self, name, settings):
        torch.manual_seed(0)
        self.name = name
        self.net = mlp(settings["width"])
        # One bucket: PowerSGD starts collectives from callbacks, whose order more would not keep;
        # a packet of TASC is so small that latency is what a second one would add.
        cap = 100 if name in ("powersgd", "tasc", "buckets", "random") else None
        self.ddp = DistributedDataParallel(
            self.net, bucket_cap_mb=cap, gradient_as_bucket_view=name == "views"
        )
        density, tasc = settings["density"], None
        if name == "tasc":
            tasc = attach(self.ddp, density=density, start=START)
        elif name == "buckets":
            tasc = attach(self.ddp, density=density, start=START, through_buckets=True)
        elif name == "random":
            tasc = gradient_hooks.RandomBlocks(self.net, density=density, start=START, min_gain=0)
            join(self.ddp, tasc)
        elif name == "bf16":
            self.ddp.register_comm_hook(None, gradient_hooks.bf16_hook)
        elif name == "topk":
            state = gradient_hooks.TopK(density, START)
            self.ddp.register_comm_hook(state, gradient_hooks.topk_hook)
        elif name == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=START
            )
            self.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        self.tasc = tasc
        params = self.net.parameters()
        self.optimizer = (
            torch.optim.SGD(params, 0.01, momentum=0.9)
            if tasc is None
            else RowSGD(params, tasc, 0.01, momentum=0.9)
        )

    def step(self, x, y):
        """Seconds until gradients are there, CPU seconds of that, and seconds until weights are."""
        self.optimizer.zero_grad()
        start, busy = time.perf_counter(), time.process_time()
        if self.name in ("nosync", "plain"):
            with self.ddp.no_sync():
                cross_entropy(self.ddp(x), y).backward()
        else:
            cross_entropy(self.ddp(x), y).backward()
        if self.name == "plain":
            self._reduce_at_once()
        reduced, busy = time.perf_counter(), time.process_time() - busy
        self.optimizer.step()
        return reduced - start, busy, time.perf_counter() - start

    def _reduce_at_once(self):
        """One ring behind the backward: nothing overlaps."""
        grads = [param.grad for param in self.net.parameters()]
        flat = torch.cat([grad.view(-1) for grad in grads])
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view(grad.shape))


def main(settings):
    torch.set_num_threads(1)
    # Long: somebody else's timings may freeze this process for minutes.
    dist.init_process_group("gloo", timeout=timedelta(seconds=900))
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(settings["batch"], 1, 28, 28, generator=generator)
    y = torch.randint(10, (settings["batch"],), generator=generator)
    contenders = [Contender(name, settings) for name in settings["methods"]]
    found = {c.name: {"reduced": [], "busy": [], "stepped": [], "bytes": []} for c in contenders}
    end = time.monotonic() + settings["seconds"]
    for turn in range(settings["rounds"] + 1):
        for contender in contenders:
            warm = START + 2 if turn == 0 else 1
            for _ in range(warm):  # the first step behind another contender's has cold caches
                contender.step(x, y)
            for _ in range(settings["steps"] if turn else 0):
                dist.barrier()
                before = sent_bytes()
                reduced, busy, stepped = contender.step(x, y)
                own = found[contender.name]
                own["reduced"].append(reduced)
                own["busy"].append(busy)
                own["stepped"].append(stepped)
                own["bytes"].append(sent_bytes() - before)
        if any_late(end):
            break
    take_slowest(found)
    if rank == 0:
        forecasts = {c.name: str(c.tasc.forecast) for c in contenders if c.tasc is not None}
        print(json.dumps({"found": found, "forecasts": forecasts, "load": os.getloadavg()[0]}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
