# SPDX-License-Identifier: Apache-2.0
"""How recipes are carried out: load, run, report, save.

`prune`, `train`, `sparsify` and `attach` are what users call. `execute` carries out the stages of a
recipe on a model; `stages/` has a file for each of them, `pruning/` and `training/` are whole runs
from the request to the artifact. A `Source` is the model a run starts from, a `Quality` what is
measured on it.
"""

from gossamer.runs.calibration import Quality, calibration_batches, pair_loss, quality_of
from gossamer.runs.executor import execute
from gossamer.runs.kept_run import KeptRun
from gossamer.runs.made_up_input import Example, example_input
from gossamer.runs.oneshot import sparsify
from gossamer.runs.quality import agreement, embed
from gossamer.runs.schedules import attach
from gossamer.runs.sources import (
    Origin,
    Source,
    check_path,
    directory_bytes,
    load_path,
    tensor_bytes,
)
from gossamer.runs.verbs import prune, train

__all__ = [
    "Example",
    "KeptRun",
    "Origin",
    "Quality",
    "Source",
    "agreement",
    "attach",
    "calibration_batches",
    "check_path",
    "directory_bytes",
    "embed",
    "example_input",
    "execute",
    "load_path",
    "pair_loss",
    "prune",
    "quality_of",
    "sparsify",
    "tensor_bytes",
    "train",
]
