# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M pruned and quantised in several ways, each made once and kept in a folder.

    GOSSAMER_DATA=DIR python benchmarks/support/smollm2_points.py FOLDER [NAME ...]

Calibrated on 32 windows of 512 tokens of the first 60 % of WikiText-2 valid (`sparsify.py` with
half the windows). int4 of pruned layers is rounded in the same pass or afterwards, everything else
afterwards; the table of embeddings, which is the head too, is int8 where its name says nothing.
Files hold integers. int4_offset is the grid that the layers of the packaged file are on already.
"""

import copy
import sys
import time
from pathlib import Path

from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gossamer import settings
from gossamer.io import save
from gossamer.nn.rounding import can_round, round_layer
from sparsify import SmolLM2, one_pruning

_SOLVER = {"method": "sparsegpt"}
_BEST = {"method": "admm", "match": "dense"}  # seven times the CPU time; cannot round as it goes
WINDOWS = 32
_JOINT = {**_SOLVER, "quantise": 4}
# Name -> (step of the recipe, None if nothing is pruned or calibrated; layers, and if it is not
# int8, the table rounded to afterwards).
POINTS = {
    "50-int4": ({**_JOINT, "sparsity": 0.5}, None),
    "50-int4-after": ({**_SOLVER, "sparsity": 0.5}, "int4"),
    "50-int8": ({**_BEST, "sparsity": 0.5}, "int8"),
    "30-int4": ({**_JOINT, "sparsity": 0.3}, None),
    "dense-int4": ({**_JOINT, "sparsity": 0.0}, None),
    "dense-int4-after": (None, "int4"),
    "dense-int8": (None, "int8"),
    "dense-offset": (None, "int4_offset"),
    "dense-offset-table4": (None, "int4_offset", "int4_offset"),
    "50-int4-table4": ({**_JOINT, "sparsity": 0.5}, None, "int4_offset"),
    "30-int8": ({**_BEST, "sparsity": 0.3}, "int8"),
    "2of4-int4": ({**_JOINT, "pattern": "2:4"}, None),
}


def rounded(model, dtype, table="int8"):
    """The model with its layers on a grid, None: as they are, and its table on another."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding):
            round_layer(layer, table)
        elif dtype is not None and can_round(layer) and name != "lm_head":
            round_layer(layer, dtype)
    return model


def make(folder, names=tuple(POINTS)):
    """Artifacts that are missing, one after the other; a run that was stopped goes on."""
    missing = [name for name in names if not (folder / name / "manifest.json").exists()]
    if not missing:
        return
    task = SmolLM2(settings.data_dir(), quick=False, calibration_windows=WINDOWS)
    for name in missing:
        started = time.monotonic()
        (step, *roundings), seconds = POINTS[name], 0.0
        model = copy.deepcopy(task.model) if step is None else None
        if step is not None:
            model, seconds = one_pruning(task, step, seed=0)
        beside = {"tokenizer.json": task.tokenizer_file}
        save(rounded(model, *roundings), folder / name, beside=beside)
        print(f"{name}: {seconds:.0f} s of CPU, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2:] or tuple(POINTS))
