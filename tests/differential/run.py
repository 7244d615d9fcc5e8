"""Random models through every step against float64 dense, for as many cases as asked for.

    python tests/differential/run.py [--cases 10000] [--seed 0] [--export] [--minutes 60]

A fault prints its seed: `--seed N --cases 1` repeats it. Exit code 1 where there was one.
"""

import argparse
import os
import re
import sys
import time
import warnings
from collections import Counter

# Measured choices would make a case depend on the moment; the fixed rule prefers sparse kernels.
os.environ.setdefault("GOSSAMER_TUNE", "off")

import torch
from cases import run_case


def main() -> int:
    """Run the cases and say what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export", action="store_true", help="torch.export and jit.trace, too")
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after this long")
    given = parser.parse_args()
    torch.set_num_threads(1)
    # torch's fused encoder layer reads weights past wrappers around a layer; the oracle must not.
    torch.backends.mha.set_fastpath_enabled(False)
    warnings.simplefilter("ignore")
    deadline = time.monotonic() + 60 * given.minutes
    steps: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    faults, done = [], 0
    for seed in range(given.seed, given.seed + given.cases):
        outcome = run_case(seed, export=given.export)
        done += 1
        steps += outcome.steps
        refusals.update(_shape(refusal) for refusal in outcome.refusals)
        if outcome.faults:
            faults.append(outcome)
            print(f"FAULT {outcome}", flush=True)
        if time.monotonic() > deadline:
            print(f"time is up after {done} of {given.cases} cases")
            break
    print(f"{done} cases, {len(faults)} with a fault")
    print("steps: " + ", ".join(f"{name} {count}" for name, count in steps.most_common()))
    for text, count in refusals.most_common(20):
        print(f"refused {count:6d} x {text}")
    return 1 if faults else 0


def _shape(text: str) -> str:
    """A refusal without its numbers and names, so that equal ones count together."""
    return re.sub(r"\d+(\.\d+)*", "N", text)[:110]


if __name__ == "__main__":
    sys.exit(main())
