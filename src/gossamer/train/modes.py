# SPDX-License-Identifier: Apache-2.0
"""Mode `jit` or `kernel` for each compact layer: measured on its own mask, the same on all ranks.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from gossamer import settings
from gossamer.errors import InputError
from gossamer.nn import Linear, Mode
from gossamer.ops.compact import compact_linear
from gossamer.ops.timing import Duel, duel
from gossamer.ops.train_kernels import why_unusable

Timer = Callable[[Callable[[], object], Callable[[], object]], Duel]

# The kernels must win by this much: within it, the choice would be noise.
_MARGIN = 1.05
# Without measurements: kept fraction and tokens at which the kernels won on every shape tried.
_RULE_DENSITY = 0.5
_RULE_TOKENS = 16


@dataclass(frozen=True)
class ModeChoice:
    """What was decided for one layer, and the microseconds of a forward and backward behind it."""

    layer: str
    mode: Mode
    why: str
    jit_us: float | None = None
    kernel_us: float | None = None

    def __str__(self) -> str:
        return f"{self.layer}: {self.mode}, {self.why}"


def choose_modes(model: nn.Module, tokens: int, *, timer: Timer = duel) -> list[ModeChoice]:
    """Set the mode of every compact layer to the faster of `jit` and `kernel`, and say why.

    A forward and a backward of each layer are timed in both modes, about a tenth of a second per
    shape and density. In a process group rank 0 decides for all. GOSSAMER_TUNE=off replaces
    measuring by a fixed rule.

    Args:
        model: its layers of type `gossamer.nn.Linear` are changed.
        tokens: rows of a layer's input in one step, batch times sequence length.
        timer: measures two callables; tests replace it.
    """
    if tokens < 1:
        raise InputError(f"choose_modes: tokens must be at least 1, got {tokens}.")
    layers = {n or "model": m for n, m in model.named_modules() if isinstance(m, Linear)}
    usable = {n: m for n, m in layers.items() if why_unusable(m.values, m.bias) is None}
    times: dict[str, Duel] = {}
    if settings.tuning_enabled():
        times = _times_of_rank_zero(usable, tokens, timer)
    choices = [_choice(name, layer, tokens, times.get(name)) for name, layer in layers.items()]
    for choice, layer in zip(choices, layers.values(), strict=True):
        layer.mode = choice.mode
        layer.refresh()
    return choices


def _choice(name: str, layer: Linear, tokens: int, times: Duel | None) -> ModeChoice:
    reason = why_unusable(layer.values, layer.bias)
    if reason is not None:
        return ModeChoice(name, "jit", reason)
    if times is None:
        wins = layer.density <= _RULE_DENSITY and tokens >= _RULE_TOKENS
        rule = f"density <= {_RULE_DENSITY} and tokens >= {_RULE_TOKENS}"
        why = f"fixed rule (GOSSAMER_TUNE=off): {rule} {'holds' if wins else 'does not hold'}"
        return ModeChoice(name, "kernel" if wins else "jit", why)
    wins = times.ratio >= _MARGIN
    why = f"kernel is {times.ratio:.2f}x jit at {tokens} tokens"
    return ModeChoice(name, "kernel" if wins else "jit", why, times.first_us, times.second_us)


def _times_of_rank_zero(layers: dict[str, Linear], tokens: int, timer: Timer) -> dict[str, Duel]:
    """Clocks differ between ranks, and the two modes round differently."""
    in_group = dist.is_available() and dist.is_initialized()
    times = torch.zeros(len(layers), 2, dtype=torch.float64)
    if not in_group or dist.get_rank() == 0:
        times = torch.tensor(_measure_all(layers, tokens, timer), dtype=torch.float64).view(-1, 2)
    if in_group:
        dist.broadcast(times, src=0)
    return {name: Duel(*row) for name, row in zip(layers, times.tolist(), strict=True)}


def _measure_all(layers: dict[str, Linear], tokens: int, timer: Timer) -> list[tuple[float, float]]:
    """Microseconds of (jit, kernel), layers that differ in values only measured once."""
    known: dict[object, Duel] = {}
    for layer in layers.values():
        key = _key(layer)
        if key not in known:
            known[key] = _measure(layer, tokens, timer)
    found = [known[_key(layer)] for layer in layers.values()]
    return [(times.first_us, times.second_us) for times in found]


def _key(layer: Linear) -> object:
    return layer.matrix_shape, layer.nnz, layer.values.requires_grad, str(layer.pattern)


def _measure(layer: Linear, tokens: int, timer: Timer) -> Duel:
    generator = torch.Generator().manual_seed(0)
    x_TK = torch.randn(tokens, layer.in_features, generator=generator).requires_grad_()
    grad_TR = torch.randn(tokens, layer.out_features, generator=generator)
    values = layer.values.detach().requires_grad_(layer.values.requires_grad)
    inputs = [tensor for tensor in (x_TK, values) if tensor.requires_grad]

    def step(kernel: bool) -> object:
        y = compact_linear(x_TK, values, layer.mask_bits, None, layer.in_features, kernel=kernel)
        return torch.autograd.grad(y, inputs, grad_TR)

    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        return timer(lambda: step(False), lambda: step(True))
