# SPDX-License-Identifier: Apache-2.0
"""What adding up a packet costs: gloo's ring beside two exchanges of each rank with each other.

    python benchmarks/tasc_collective.py [--hosts 4] [--sizes 1000 96000 1900000]

Hosts are processes on the loopback address, one thread each. Milliseconds are medians of calls in
turns, of host 0; CPU is what all its threads computed.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from rich.table import Table

from gossamer.testing import Cluster
from gossamer.training.distributed.tasc.packet import all_reduce_in_two_hops, padded_size
from support import options

WAYS = {
    "ring": lambda buffer: dist.all_reduce(buffer),
    "two hops": lambda buffer: all_reduce_in_two_hops(buffer, None),
}


def arguments():
    made = options.parser("What adding up a packet costs.")
    made.add_argument("--hosts", type=int, default=4)
    made.add_argument("--sizes", type=int, nargs="+", default=[1000, 96_000, 300_000, 1_900_000])
    made.add_argument("--repeats", type=int, default=25)
    made.add_argument("--rank", action="store_true", help="run as one of the hosts")
    return made.parse_args()


def rank(given):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    num_ranks, rows = dist.get_world_size(), []
    for size in given.sizes:
        buffer = torch.ones(padded_size(size, num_ranks))
        taken = {name: ([], []) for name in WAYS}
        for turn in range(given.repeats + 2):
            for name, add_up in WAYS.items():
                dist.barrier()
                start, busy = time.perf_counter(), time.process_time()
                add_up(buffer)
                if turn > 1:
                    taken[name][0].append(time.perf_counter() - start)
                    taken[name][1].append(time.process_time() - busy)
                buffer.div_(num_ranks)
        for name, (wall, cpu) in taken.items():
            found = {"ms": 1e3 * statistics.median(wall), "cpu_ms": 1e3 * statistics.median(cpu)}
            rows.append({"elements": size, "way": name, **found})
    if dist.get_rank() == 0:
        print(json.dumps({"rows": rows, "load": os.getloadavg()[0]}))
    dist.barrier()
    dist.destroy_process_group()


def main():
    given = arguments()
    if given.rank:
        rank(given)
        return
    with Cluster(given.hosts, isolation="loopback") as cluster:
        ended = cluster.run([sys.executable, *sys.argv, "--rank"], timeout_seconds=600)
    for host, end in enumerate(ended):
        if end.exit_code:
            sys.exit(f"host {host} ended with {end.exit_code}:\n{end.errors[-2000:]}")
    said = json.loads(ended[0].output.splitlines()[-1])
    table = Table("elements", "way", "ms", "CPU ms", title=f"load {said['load']:.1f}")
    for row in said["rows"]:
        cells = (f"{row[key]:.2f}" for key in ("ms", "cpu_ms"))
        table.add_row(f"{row['elements']:,}", row["way"], *cells)
    options.give(given, {"machine": options.machine(), **said}, table)


if __name__ == "__main__":
    main()
