"""What the instruction mixes of the kernels reach at best on one core, beside dense GEMM.

    python benchmarks/ceilings.py [--json]

`fma` is pure arithmetic from registers. Each other one is a kernel's own mix, `panel` for example
one broadcast and the FMAs of a token tile with memory operands in L1, on rows that never end. A
kernel can be judged by its distance to its mix, whatever the machine does at the moment.
"""

import argparse
import json

import torch

from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.timing import duel
from gossamer.running.bench import ceilings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rates = ceilings(2.0)
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = duel(lambda: a @ b, lambda: a @ b, budget_seconds=2.0, max_rounds=1000)
    rates["dense gemm"] = 2e-3 * 1024**3 / min(best.first_us, best.second_us)
    document = {
        "cpu": cpu_name(),
        "kernels": active_kernels(),
        "torch": torch.__version__,
        "gflops": {name: round(rate, 1) for name, rate in rates.items()},
    }
    if arguments.json:
        print(json.dumps(document))
        return
    print(f"{document['cpu']}, {document['kernels']} kernels, torch {torch.__version__}, 1 thread")
    for name, rate in document["gflops"].items():
        print(f"  {name:12s} {rate:7.1f} GFLOP/s")


if __name__ == "__main__":
    main()
