# SPDX-License-Identifier: Apache-2.0
"""GPTs in every way to train them, for the benchmarks of training."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.training.optim import AdamW
from gossamer.training.optim.scaling import LossScaler
from gossamer.training.samo import hold_samo
from gossamer.zoo import GPT

SIZES = {
    "25M": {"width": 512, "num_heads": 8, "num_layers": 8},
    "300M": {"width": 1024, "num_heads": 16, "num_layers": 24},
}
VOCABULARY = 256  # bytes
CONTEXT = 256


@dataclass(frozen=True)
class Case:
    """How the weights of a model are held and multiplied.

    Attributes:
        mode: of compact layers; "dense" for an ordinary model.
        optimizer: takes parameters.
        split: whether the pruned weights are bf16 with the rest of their bits in the optimizer.
        gives_up: whether values live in the dense weight only.
        autocast: the dtype of forward under autocast; None for float32.
        holds: the dtype of weights with float32 masters and gradients: of SAMO, or of a dense
            model in mixed precision.
    """

    mode: str
    optimizer: Callable
    split: bool = False
    gives_up: bool = False
    autocast: torch.dtype | None = None
    holds: torch.dtype | None = None

    def scaler(self):
        """Of the loss, for float16."""
        return LossScaler(2.0**12) if self.autocast is torch.float16 else None


def fused_adamw(params):
    """The fastest AdamW of torch on a CPU."""
    return torch.optim.AdamW(params, 1e-3, fused=True)


def eight_bit_adamw(params):
    return AdamW(params, 1e-3, moments="8bit", master="split8", fused=True)


def exact_adamw(params):
    return AdamW(params, 1e-3, fused=True)


def wide_adamw(params):
    return AdamW(params, 1e-3, master="wide")


HALF, BRAIN = torch.float16, torch.bfloat16
CASES = {
    "dense": Case("dense", fused_adamw),
    "dense bf16": Case("dense", fused_adamw, autocast=BRAIN),
    "dense mixed": Case("dense", wide_adamw, autocast=HALF, holds=HALF),
    "samo": Case("samo", wide_adamw, autocast=HALF, holds=HALF),
    "samo bf16": Case("samo", wide_adamw, autocast=BRAIN, holds=BRAIN),
    "fp32": Case("kernel", fused_adamw),
    "exact": Case("kernel", exact_adamw, split=True),
    "8bit": Case("kernel", eight_bit_adamw, split=True),
    "resident": Case("resident", exact_adamw, split=True, gives_up=True),
    "jit": Case("jit", exact_adamw, split=True),
    "resident fp32": Case("resident", fused_adamw),
    "jit fp32": Case("jit", fused_adamw),
}


def build_gpt(size, case, sparsity, *, recompute=False):
    """The model of a case, pruned by magnitude and compact where it is sparse."""
    model = GPT(VOCABULARY, context=CONTEXT, recompute=recompute, **SIZES[size])
    if CASES[case].mode != "dense":
        # Block by block: masks and values of one block at a time beside the dense weights.
        for block in model.blocks:
            gossamer.sparsify(block, sparsity=sparsity)
            # Values get their 16 bits with the optimizer.
            mode = "jit" if CASES[case].mode == "samo" else CASES[case].mode
            gossamer.compact(block, mode=mode)
    return model


def prepare(model, case):
    """The optimizer of a case; weights are split and given up as it says."""
    settings = CASES[case]
    optimizer = settings.optimizer(model.parameters())
    layers = [m for m in model.modules() if isinstance(m, gossamer.nn.Linear)]
    if settings.split:
        optimizer.split_masters(layer.values for layer in layers)
    if settings.mode == "samo":
        hold_samo(model, optimizer, settings.holds)
    elif settings.holds is not None:
        optimizer.split_masters(block_weights(model), dtype=settings.holds)
    if settings.gives_up:
        for layer in layers:
            layer.give_up_values()
    return optimizer


def block_weights(model):
    """Weights of the linear layers of all blocks of a dense model: what others prune."""
    return [m.weight for m in model.blocks.modules() if isinstance(m, torch.nn.Linear)]


def loss_of(model, ids, *, autocast=None):
    with torch.autocast("cpu", autocast or BRAIN, enabled=autocast is not None):
        logits = model(ids[:, :-1])
    return cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def train_step(model, optimizer, ids, *, autocast=None, scaler=None):
    """One step on ids [B, T + 1]; gradients stay."""
    optimizer.zero_grad()
    loss = loss_of(model, ids, autocast=autocast)
    (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is None:
        optimizer.step()
    elif not scaler.step(optimizer):
        raise SystemExit("a gradient overflowed: the step was skipped and shows nothing")
    return loss.item()
