# SPDX-License-Identifier: Apache-2.0
"""Recovery: the short training that turns a one-shot mask into a usable model.

`recover` runs it for as long as a `RecoverySchedule` says. Its objective is usually a
`DistillationObjective` with a `Teacher`. `compact_form` and `fake_int8` change its layers.
"""

from gossamer.nn.batch import Batch
from gossamer.training.recovery.activation_sparsity import measure_activation_sparsity
from gossamer.training.recovery.compact_form import compact_form
from gossamer.training.recovery.distillation import DistillationObjective, TaskLoss, Terms
from gossamer.training.recovery.fake_int8 import attach_fake_int8, detach_fake_int8, fake_int8
from gossamer.training.recovery.run import HELD_OUT, RecoverySchedule, recover
from gossamer.training.recovery.teacher import Teacher, check_apart

__all__ = [
    "HELD_OUT",
    "Batch",
    "DistillationObjective",
    "RecoverySchedule",
    "TaskLoss",
    "Teacher",
    "Terms",
    "attach_fake_int8",
    "check_apart",
    "compact_form",
    "detach_fake_int8",
    "fake_int8",
    "measure_activation_sparsity",
    "recover",
]
