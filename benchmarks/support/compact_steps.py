# SPDX-License-Identifier: Apache-2.0
"""Steps of a dense and a compact GPT under stock DDP, timed in turns. Runs on every host of a box.

    python compact_steps.py SETTINGS

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
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gossamer
from gossamer.zoo import GPT

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.payload import sent_bytes
from support.turns import any_late, take_slowest


class Contender:
    """A GPT under DDP with AdamW, dense or with the kept values of pruned layers."""

    def __init__(self, name, settings):
        torch.manual_seed(0)
        self.name = name
        model = GPT(
            256,
            width=settings["width"],
            num_heads=8,
            num_layers=settings["layers"],
            context=settings["tokens"],
            tied=True,
        )
        self.pruned = sum(p.numel() for n, p in model.named_parameters() if _is_pruned(n, p))
        if name == "compact":
            for block in model.blocks:
                gossamer.sparsify(block, sparsity=settings["sparsity"])
                gossamer.compact(block, mode="kernel")
        self.elements = sum(param.numel() for param in model.parameters())
        self.ddp = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)

    def step(self, ids, synchronised):
        """Seconds until gradients are there, and until weights are."""
        self.optimizer.zero_grad()
        start = time.perf_counter()
        if synchronised:
            self._backward(ids)
        else:
            with self.ddp.no_sync():
                self._backward(ids)
        reduced = time.perf_counter()
        self.optimizer.step()
        return reduced - start, time.perf_counter() - start

    def _backward(self, ids):
        logits = self.ddp(ids[:, :-1])
        cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()


def _is_pruned(name, param):
    return name.startswith("blocks.") and param.ndim == 2


def main(settings):
    torch.set_num_threads(1)
    # Long: somebody else's timings may freeze this process for minutes.
    dist.init_process_group("gloo", timeout=timedelta(seconds=900))
    generator = torch.Generator().manual_seed(dist.get_rank())
    ids = torch.randint(256, (1, settings["tokens"] + 1), generator=generator)
    contenders = [Contender(name, settings) for name in ("dense", "compact")]
    found = {}
    end = time.monotonic() + settings["seconds"]
    for turn in range(settings["rounds"] + 1):
        for contender in contenders:
            contender.step(ids, synchronised=False)  # caches hold the other one's weights
            for synchronised in (False, True):
                key = f"{contender.name} {'sync' if synchronised else 'alone'}"
                own = found.setdefault(key, {"reduced": [], "stepped": [], "bytes": []})
                # DDP makes its buckets anew after the first synchronised step.
                for _ in range(1 if turn else 2):
                    dist.barrier()
                    before = sent_bytes()
                    reduced, stepped = contender.step(ids, synchronised)
                    if turn:
                        own["reduced"].append(reduced)
                        own["stepped"].append(stepped)
                        own["bytes"].append(sent_bytes() - before)
        if any_late(end):
            break
    take_slowest(found)
    if dist.get_rank() == 0:
        elements = {contender.name: contender.elements for contender in contenders}
        said = {"found": found, "elements": elements, "pruned": contenders[0].pruned}
        print(json.dumps({**said, "load": os.getloadavg()[0]}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
