# SPDX-License-Identifier: Apache-2.0
"""Mode `jit` or `kernel` for each compact layer, measured on its own mask, equal on all ranks."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from gossamer import settings
from gossamer.errors import InputError
from gossamer.nn.batch import input_shapes
from gossamer.nn.layer_kinds import KINDS, sparse_layers
from gossamer.nn.layers import CompactWeight, Mode
from gossamer.nn.layers.parts import DenseHome
from gossamer.ops.timing import Duel, duel

Timer = Callable[[Callable[[], object], Callable[[], object]], Duel]

# The kernels must win by this much: within it, the choice would be noise.
_MARGIN = 1.05


# Without measurements: kept fraction and inputs at which kernels won on every shape tried.
_RULES = {"linear": (0.5, 16, "tokens"), "conv": (0.3, 256, "pixels")}
_NO_EXAMPLE = "the size of its images is not known: pass example=, an input of the model"


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


@dataclass(frozen=True)
class _Case:
    """A layer and the shape of its input."""

    layer: CompactWeight
    shape: tuple[int, ...] | None

    @property
    def num_inputs(self) -> int:
        """Tokens, or pixels of the output in all images."""
        return 0 if self.shape is None else self.layer.num_products(self.shape)

    @property
    def key(self) -> object:
        """Equal for layers that differ in values only."""
        layer = self.layer
        what = (layer.kind, layer.weight_shape, KINDS[layer.kind].settings(layer))
        return what, self.shape, layer.nnz, layer.values.requires_grad, str(layer.pattern)

    def why_jit(self) -> str | None:
        """Why the kernels are no choice; None if they are."""
        return self.layer.why_no_kernel() or (_NO_EXAMPLE if self.shape is None else None)


def choose_modes(
    model: nn.Module,
    tokens: int,
    *,
    example: torch.Tensor | None = None,
    timer: Timer = duel,
) -> list[ModeChoice]:
    """Set the mode of every compact layer to the faster of `jit` and `kernel`, and say why.

    A forward and a backward of each layer are timed in both modes, about a tenth of a second per
    shape and density. In a process group rank 0 decides for all. GOSSAMER_TUNE=off replaces
    measuring by a fixed rule.

    Args:
        model: its layers of type `gossamer.nn.Linear` and `gossamer.nn.Conv2d` are changed.
        tokens: rows of a Linear's input in one step, batch times sequence length.
        example: an input of the model, run once to learn the sizes of images. Without it
            convolutions take mode `jit`. In a process group all ranks give one or none does.
        timer: measures two callables; tests replace it.
    """
    if tokens < 1:
        raise InputError(f"choose_modes: tokens must be at least 1, got {tokens}.")
    shapes = input_shapes(model, example, "conv", "choose_modes")
    cases = {
        name or "model": _Case(layer, layer.input_shape(tokens, shapes.get(id(layer))))
        for name, layer in sparse_layers(model, "compact")
        # Layers that gave up their values have their dense weight only, and stay as they are.
        if DenseHome.of(layer.values) is None
    }
    times = _times_of_rank_zero(cases, timer) if settings.tuning_enabled() else {}
    choices = [_choice(name, case, times.get(name)) for name, case in cases.items()]
    for choice in choices:
        layer = cases[choice.layer].layer
        layer.mode = choice.mode
        layer.refresh()
    return choices


def _choice(name: str, case: _Case, times: Duel | None) -> ModeChoice:
    reason = case.why_jit()
    if reason is not None:
        return ModeChoice(name, "jit", reason)
    density, inputs, unit = _RULES[case.layer.kind]
    if times is None:
        wins = case.layer.density <= density and case.num_inputs >= inputs
        rule = f"density <= {density} and {unit} >= {inputs}"
        why = f"fixed rule (GOSSAMER_TUNE=off): {rule} {'holds' if wins else 'does not hold'}"
    else:
        wins = times.ratio >= _MARGIN
        why = f"kernel is {times.ratio:.2f}x jit at {case.num_inputs} {unit}"
    return ModeChoice(name, "kernel" if wins else "jit", why, *(times.us if times else ()))


def _times_of_rank_zero(cases: dict[str, _Case], timer: Timer) -> dict[str, Duel]:
    """Of (jit, kernel): clocks differ between ranks, and the two modes round differently."""
    usable = {name: case for name, case in cases.items() if case.why_jit() is None}
    in_group = dist.is_available() and dist.is_initialized()
    times = torch.zeros(len(usable), 2, dtype=torch.float64)
    if not in_group or dist.get_rank() == 0:
        # Layers that differ in values only are measured once.
        alike = {case.key: case for case in usable.values()}
        known = {key: _measure(case, timer).us for key, case in alike.items()}
        rows = [known[case.key] for case in usable.values()]
        times = torch.tensor(rows, dtype=torch.float64).view(-1, 2)
    if in_group:
        dist.broadcast(times, src=0)
    return {name: Duel(*row) for name, row in zip(usable, times.tolist(), strict=True)}


def _measure(case: _Case, timer: Timer) -> Duel:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.shape or (), generator=generator).requires_grad_()
    values = case.layer.values.detach().requires_grad_(case.layer.values.requires_grad)
    inputs = [tensor for tensor in (x, values) if tensor.requires_grad]
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        grad = torch.randn(case.layer.product(x, values, sparse=True).shape, generator=generator)

        def step(kernel: bool) -> object:
            return torch.autograd.grad(case.layer.product(x, values, sparse=kernel), inputs, grad)

        return timer(lambda: step(False), lambda: step(True))
