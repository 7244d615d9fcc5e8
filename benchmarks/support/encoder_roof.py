# SPDX-License-Identifier: Apache-2.0
"""The least time of an encoder on this machine.

Multiply-adds at the measured peak or bytes at the measured read bandwidth, whichever is longer.
"""

from dataclasses import dataclass

import torch

from gossamer.running.bench import ceilings
from support.roofline import bandwidth_gbs

_VALUE_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}


@dataclass(frozen=True)
class Roof:
    """Measured limits; rates are of one thread.

    Attributes:
        fma_gflops: fp32 multiply-adds in registers.
        int8_gops: the int8 mix on data in L1.
        bandwidth_gbs: reading what fits no cache.
    """

    fma_gflops: float
    int8_gops: float
    bandwidth_gbs: float


def measure_roof():
    """A second or two of measuring, on one thread: by the time of the processor (see `turn/`)."""
    torch.set_num_threads(1)
    rates = ceilings(0.5, ("fma", "int8_panel", "int8_quad"))
    int8 = max(rates["int8_panel"], rates["int8_quad"])
    return Roof(rates["fma"], int8, bandwidth_gbs())


@dataclass(frozen=True)
class Work:
    """What an encoder has to do for one batch.

    Attributes:
        weights: of all linear layers, zeros included.
        tokens: of the batch.
        attention_flops: of scores and mixing, never sparse.
    """

    weights: int
    tokens: int
    attention_flops: float


def work_of(shape, batch, sequence):
    """The work of a BERT-like encoder."""
    weights = shape.layers * (4 * shape.features**2 + 2 * shape.features * shape.inner)
    attention = shape.layers * batch * 4 * sequence**2 * shape.features
    return Work(weights, batch * sequence, attention)


def least_ms(work, roof, precision, sparsity, threads):
    """Kept weights alone, each moved once. bf16 is taken at twice the rate of fp32."""
    kept = work.weights * (1 - sparsity)
    rates = {"fp32": roof.fma_gflops, "bf16": 2 * roof.fma_gflops, "int8": roof.int8_gops}
    products = 2 * kept * work.tokens / rates[precision]
    arithmetic = products + work.attention_flops / roof.fma_gflops
    memory = kept * _VALUE_BYTES[precision] / roof.bandwidth_gbs
    return max(arithmetic, memory) / threads * 1e-6
