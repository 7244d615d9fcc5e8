# SPDX-License-Identifier: Apache-2.0
"""How recipes are carried out: load, run, report, save.

`prune`, `train`, `sparsify` and `attach` are what users call. `execute` carries out the stages of a
recipe on a model, and a `KeptRun` is one that can be taken up again; `example_input` makes an input
up where none is given, an `Example`.

`stages` has a file for each stage, `pruning` and `training` are whole runs from the request to the
artifact, `sources` are the models that they start from, `calibration` the data and the measure of
quality.
"""

from gossamer.runs.executor import execute
from gossamer.runs.kept_run import KeptRun
from gossamer.runs.made_up_input import Example, example_input
from gossamer.runs.oneshot import sparsify
from gossamer.runs.schedules import attach
from gossamer.runs.verbs import prune, train

__all__ = [
    "Example",
    "KeptRun",
    "attach",
    "example_input",
    "execute",
    "prune",
    "sparsify",
    "train",
]
