# SPDX-License-Identifier: Apache-2.0
"""Recovery: the short training that turns a one-shot mask into a usable model."""

from gossamer.nn.batch import Batch
from gossamer.train.recovery.distillation import Distillation, Terms
from gossamer.train.recovery.fake_int8 import attach_fake_int8, detach_fake_int8, fake_int8
from gossamer.train.recovery.run import recover
from gossamer.train.recovery.schedule import HELD_OUT, Schedule
from gossamer.train.recovery.teacher import Teacher

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
