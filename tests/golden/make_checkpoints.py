# SPDX-License-Identifier: Apache-2.0
"""Write checkpoints of runs that have none yet: python tests/golden/make_checkpoints.py

A run that has its files is left alone: they hold what an earlier version wrote.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
from training_runs import KEPT_STEP, LAST_STEP, RUNS, digests_of, machine, start

from gossamer.training.checkpoint import read_checkpoint

FILES = Path(__file__).parent / "checkpoints"


def main() -> None:
    """One checkpoint in the middle, and the digests of the state at the end, for each new run."""
    torch.set_num_threads(1)
    for name in RUNS:
        folder = FILES / name
        if folder.exists():
            continue
        with tempfile.TemporaryDirectory() as scratch:
            start(name, Path(scratch)).train()
            shutil.copytree(
                Path(scratch, f"step_{KEPT_STEP:08d}"), folder / f"step_{KEPT_STEP:08d}"
            )
            end = digests_of(read_checkpoint(Path(scratch, f"step_{LAST_STEP:08d}")))
        record = {"machine": machine(), "end": end}
        (FILES / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(name, sum(file.stat().st_size for file in folder.rglob("*.*")))


if __name__ == "__main__":
    main()
