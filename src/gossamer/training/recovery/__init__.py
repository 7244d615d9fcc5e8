# SPDX-License-Identifier: Apache-2.0
"""Recovery: the short training that turns a one-shot mask into a usable model."""

from gossamer.nn.batch import Batch
from gossamer.training.recovery.distillation import Distillation, Terms
from gossamer.training.recovery.fake_int8 import attach_fake_int8, detach_fake_int8, fake_int8
from gossamer.training.recovery.run import HELD_OUT, Schedule, recover
from gossamer.training.recovery.teacher import Teacher

__all__ = [
    "HELD_OUT",
    "Batch",
    "Distillation",
    "Schedule",
    "Teacher",
    "Terms",
    "attach_fake_int8",
    "detach_fake_int8",
    "fake_int8",
    "recover",
]
