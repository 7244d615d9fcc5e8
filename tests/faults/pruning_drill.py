# SPDX-License-Identifier: Apache-2.0
"""Pruning that is killed with SIGKILL around every write of its journal; run as a script.

`python pruning_drill.py FOLDER` forks one run per moment, kills it there, resumes in another fork
and prints one JSON line per moment: how the run ended, how many layers were solved by then,
and whether the artifact equals that of an undisturbed run, byte by byte.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from writer_drill import in_child

from gossamer.io import save
from gossamer.pruning.calibration import journal as journal_module
from gossamer.pruning.calibration.flow import as_batches
from gossamer.pruning.calibration.journal import DiskJournal, data_digest, model_digest
from gossamer.recipes import load_recipe
from gossamer.runs import execute
from gossamer.runs.stages import StageInput
from gossamer.zoo import MLP

SIZES = (16, 24, 20, 12, 3)
# What writes one layer: the tensors, their way to the disk, their final name.
HOOKS = [(journal_module, "write_tensors"), (os, "fsync"), (Path, "replace")]


def prune(folder: Path, *, kill_at: int | None = None) -> None:
    """The whole job; with `kill_at` it dies after so many writes."""
    torch.manual_seed(0)
    model, data = MLP(SIZES), [torch.randn(40, SIZES[0])]
    key = {"model": model_digest(model), "data": data_digest(as_batches(data, "drill"))}
    journal = DiskJournal(folder / "out.journal", key)
    if kill_at is not None:
        die_after(kill_at)
    execute(load_recipe("sparsegpt-50"), model, data, given=StageInput(journal=journal))
    save(model, folder / "out")
    journal.remove()


def die_after(number: int) -> None:
    """Kill this process after the given write of the journal."""
    count = 0
    for owner, name in HOOKS:
        function = getattr(owner, name)

        def wrapper(*args, _function=function, **kwargs):
            nonlocal count
            result = _function(*args, **kwargs)
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, wrapper)


def tensors(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").glob("*.safetensors")}


def main() -> None:
    place = Path(sys.argv[1])
    torch.set_num_threads(1)
    whole = place / "whole"
    whole.mkdir()
    in_child(lambda: prune(whole))
    expected = tensors(whole)
    moment, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL and moment < 100:
        moment += 1
        folder = place / str(moment)
        folder.mkdir()
        code = in_child(lambda folder=folder, at=moment: prune(folder, kill_at=at))
        solved = len(list((folder / "out.journal").glob("*.safetensors")))
        resumed = 0 if code == 0 else in_child(lambda folder=folder: prune(folder))
        line = {
            "killed": code == -signal.SIGKILL,
            "resumed": resumed,
            "solved": solved,
            "equal": bool(expected) and tensors(folder) == expected,
            "left": sorted(path.name for path in folder.iterdir()),
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
