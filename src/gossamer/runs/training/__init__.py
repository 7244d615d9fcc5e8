# SPDX-License-Identifier: Apache-2.0
"""A training run as a whole: what is asked, what it would take, and the way to the artifact.

`run_train` carries out a `TrainRequest`, `plan_train` says beforehand what it would need and take.
Both are what `gossamer.train` and the command of that name call. `run_training` in `stage.py` is
the part between the request and the trained model.
"""

from gossamer.runs.training.plan import TrainingPlan
from gossamer.runs.training.request import TrainRequest
from gossamer.runs.training.run import TrainResult, plan_train, run_train

__all__ = ["TrainRequest", "TrainResult", "TrainingPlan", "plan_train", "run_train"]
