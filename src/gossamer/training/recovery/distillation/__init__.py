# SPDX-License-Identifier: Apache-2.0
"""Training that follows another model: the dense one, as it was before pruning.

A `DistillationObjective` adds up `Terms`: how far outputs, hidden states and vectors are from the
`Teacher`'s, and a `TaskLoss` if there is one. `check_apart` refuses a teacher that is the student.
"""

from gossamer.training.recovery.distillation.objective import (
    DistillationObjective,
    TaskLoss,
    Teacher,
    Terms,
    check_apart,
)

__all__ = ["DistillationObjective", "TaskLoss", "Teacher", "Terms", "check_apart"]
