# SPDX-License-Identifier: Apache-2.0
"""Steps of a model of clicks with each way to exchange gradients of tables, on every host of a box.

    python table_steps.py SETTINGS

Rank 0 prints seconds and payload bytes of every step, the slowest rank's, as JSON.
"""

import hashlib
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.insert(0, str(Path(__file__).parents[1]))
from gossamer.training.distributed.processes.messages import gather_json
from gossamer.training.distributed.tables import TableExchange, TableSettings, sparse_tables
from support.payload import sent_bytes
from support.turns import any_late, take_slowest

WIRES = {"sparse fp32": "full", "sparse int8": "int8", "sparse int4": "int4"}
NUMBERS = 13


class Clicks(nn.Module):
    """DLRM's shape: a bottom MLP, tables, dots of all pairs, a top MLP."""

    def __init__(self, heights, width, *, sparse):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(height, width, mode="sum", sparse=sparse) for height in heights
        )
        for table in self.tables:
            nn.init.uniform_(table.weight, -(len(table.weight) ** -0.5), len(table.weight) ** -0.5)
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, width))
        vectors = len(heights) + 1
        inputs = width + vectors * (vectors - 1) // 2
        self.top = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, -1))

    def forward(self, numbers, ids):
        """Logits."""
        first = self.bottom(numbers)
        pooled = [table(ids[:, i : i + 1]) for i, table in enumerate(self.tables)]
        all_BFD = torch.stack([first, *pooled], 1)
        dots = (all_BFD @ all_BFD.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([first, dots], 1))[:, 0]


class Clicked:
    """Long-tailed ids whose rows have hidden weights; two pairs of tables interact."""

    def __init__(self, heights):
        generator = torch.Generator().manual_seed(1)
        self.heights = heights
        self.hidden = [torch.randn(height, generator=generator) for height in heights]
        self.of_numbers = 0.3 * torch.randn(NUMBERS, generator=generator)

    def batch(self, seed, size):
        """Numbers, ids and labels of `size` samples."""
        generator = torch.Generator().manual_seed(seed)
        # Log-uniform ranks: Zipf's law with exponent 1.
        draws = torch.rand(size, len(self.heights), generator=generator)
        tops = torch.tensor([float(height) for height in self.heights])
        ids = (tops.pow(draws) - 1).long()
        numbers = torch.randn(size, NUMBERS, generator=generator)
        parts = torch.stack([hidden[ids[:, i]] for i, hidden in enumerate(self.hidden)], 1)
        logits = parts.sum(1) * len(self.heights) ** -0.5 + numbers @ self.of_numbers
        logits = logits + parts[:, 0] * parts[:, 1] - parts[:, -1] * parts[:, -2]
        chance = torch.rand(size, generator=generator)
        return numbers, ids, (chance < logits.sigmoid()).float()


def area_under_curve(scores, labels):
    """The chance that a click scores above a non-click."""
    ranks = scores.argsort().argsort().double() + 1
    clicks = labels.sum()
    above = ranks[labels > 0].sum() - clicks * (clicks + 1) / 2
    return float(above / (clicks * (len(labels) - clicks)))


class Contender:
    """A model of its own with one way to exchange gradients."""

    def __init__(self, name, settings):
        torch.manual_seed(0)
        self.name = name
        self.net = Clicks(settings["heights"], settings["width"], sparse=name != "dense")
        tables = sparse_tables(self.net)
        held = {id(param) for param in self.net.tables.parameters()}
        self.dense = [param for param in self.net.parameters() if id(param) not in held]
        self.exchange = None
        if name in WIRES:
            wired = TableSettings(WIRES[name], settings["rounding"], settings["route"])
            self.exchange = TableExchange(tables, wired)
        self.optimizer = torch.optim.SGD(self.net.parameters(), settings["rate"])
        self.number = 0

    def step(self, numbers, ids, labels):
        """Seconds and CPU seconds of the tables' exchange, its bytes, seconds of the whole step."""
        began = time.perf_counter()
        self.optimizer.zero_grad()
        binary_cross_entropy_with_logits(self.net(numbers, ids), labels).backward()
        self._average(param.grad for param in self.dense)
        # Ranks are at one place again, so that nobody's packet waits for a slow backward.
        dist.barrier()
        before, start, busy = sent_bytes(), time.perf_counter(), time.process_time()
        if self.exchange is not None:
            self.exchange.reduce(self.number)
        elif self.name == "dense":
            self._average(table.weight.grad for table in self.net.tables)
        else:  # torch's own all-reduce of sparse tensors, as DDP does it
            for table in self.net.tables:
                dist.all_reduce(table.weight.grad)
                table.weight.grad = table.weight.grad / dist.get_world_size()
        elapsed, busy = time.perf_counter() - start, time.process_time() - busy
        dist.barrier()
        sent = sent_bytes() - before
        self.optimizer.step()
        self.number += 1
        return elapsed, busy, sent, time.perf_counter() - began

    def _average(self, gradients):
        grads = list(gradients)
        flat = torch.cat([grad.view(-1) for grad in grads])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view(grad.shape))


def race(settings):
    """All contenders in turns."""
    rank, data = dist.get_rank(), Clicked(settings["heights"])
    contenders = [Contender(name, settings) for name in settings["methods"]]
    found = {c.name: {"packets": [], "busy": [], "bytes": [], "step": []} for c in contenders}
    rows = {c.name: [] for c in contenders if c.exchange is not None}
    end = time.monotonic() + settings["seconds"]
    for turn in range(settings["rounds"] + 1):
        for contender in contenders:
            slow = contender.name == "dense"
            if slow and turn > 3:
                continue
            for index in range(1 if slow else settings["steps"]):
                batch = data.batch(10_000 * turn + 100 * index + rank, settings["batch"])
                taken = contender.step(*batch)
                if turn:
                    for series, value in zip(found[contender.name].values(), taken, strict=True):
                        series.append(value)
                    if contender.exchange is not None:
                        last = contender.exchange.last
                        rows[contender.name].append([last.rows, last.union, last.route])
        if any_late(end):
            break
    everywhere = gather_json(rows)
    take_slowest(found)
    return {"found": found, "rows": everywhere}


def drill(settings):
    """Many steps of each wire: whether ranks end with the same bits, and what they have learned."""
    rank, world, data = dist.get_rank(), dist.get_world_size(), Clicked(settings["heights"])
    result = {}
    for name in settings["methods"]:
        if name not in WIRES:
            continue
        contender = Contender(name, settings)
        for number in range(settings["drill"]):
            contender.step(*data.batch(world * number + rank + 10**6, settings["batch"]))
        digest = hashlib.sha256()
        for tensor in contender.net.state_dict().values():
            digest.update(tensor.numpy().tobytes())
        numbers, ids, labels = data.batch(5, 50_000)
        with torch.no_grad():
            area = area_under_curve(contender.net(numbers, ids), labels)
        result[name] = {"same": len(set(gather_json(digest.hexdigest()))) == 1, "auc": area}
    return result


def main(settings):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=900))
    said = drill(settings) if settings["drill"] else race(settings)
    if dist.get_rank() == 0:
        print(json.dumps({"said": said, "load": os.getloadavg()[0]}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
