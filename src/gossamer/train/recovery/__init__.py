# SPDX-License-Identifier: Apache-2.0
"""Recovery: the short training that turns a one-shot mask into a usable model."""

from gossamer.train.recovery.batches import Batch, TrainingBatch
from gossamer.train.recovery.distillation import Distillation, Terms
from gossamer.train.recovery.fake_int8 import attach_fake_int8, detach_fake_int8, fake_int8
from gossamer.train.recovery.loop import Check, Recovery, recover
from gossamer.train.recovery.schedule import Schedule
from gossamer.train.recovery.teacher import Teacher

__all__ = [
    "Batch",
    "Check",
    "Distillation",
    "Recovery",
    "Schedule",
    "Teacher",
    "Terms",
    "TrainingBatch",
    "attach_fake_int8",
    "detach_fake_int8",
    "fake_int8",
    "recover",
]
