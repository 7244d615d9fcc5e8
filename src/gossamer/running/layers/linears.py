# SPDX-License-Identifier: Apache-2.0
"""The linear layers of a model that is compiled: packed where a sparse kernel measures faster."""

from torch import nn

from gossamer.nn.layer_kinds import weight_of
from gossamer.ops.dispatch import Problem, kernels_for, report_missing
from gossamer.running.layers.casting import HALVES, casting
from gossamer.running.layers.contenders import Contenders
from gossamer.running.layers.job import Job, StaysDense
from gossamer.running.layers.packed import PackedLinear


def pack_linear(job: Job) -> nn.Module | StaysDense:
    """The inference form of one Linear."""
    kernels = kernels_for("linear", Problem(job.matrix, job.precision))
    if not kernels:
        report_missing("linear", str(job.matrix.pattern), job.name)
    if job.dtype in HALVES:
        kernels = tuple(casting(kernel) for kernel in kernels)
    weight_RK = weight_of(job.layer)
    contenders = Contenders(job.matrix, weight_RK, kernels)
    choices = tuple(job.chooser.choose(contenders, count) for count in job.counts)
    chosen = {choice.kernel for choice in choices}
    if chosen == {"dense"}:
        return StaysDense(choices)
    runs = {k.name: contenders.packed(k) for k in kernels if k.name in chosen}
    held = weight_RK if "dense" in chosen else None
    choices = tuple(choice.of_dtype(job.dtype) for choice in choices)
    return PackedLinear(job.matrix, runs, job.layer.bias, choices, held, job.dtype, job.name)
