# SPDX-License-Identifier: Apache-2.0
"""A convolutional network run as one native call, from its images to its features.

`plan.py` reads as much of the model as a net can compute; the rest runs as it did. Images of
another size than those it was made for go layer by layer.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from gossamer import settings
from gossamer.errors import KernelMissing
from gossamer.nn.surgery.carried import Watch
from gossamer.ops import kernel_list
from gossamer.ops.addresses import direct_address
from gossamer.ops.engines.conv_net import PackedConvNet
from gossamer.ops.timing import duel
from gossamer.running.choice import Choice
from gossamer.running.conv_net.fused_convs import (
    ConvTracer,
    RewrittenForward,
    leave_and_report,
    same_output,
)
from gossamer.running.conv_net.plan import lower, plan_of, rest_of
from gossamer.running.packed import PackedConv2d

# It must win by this much: within it, the choice would be noise.
_MARGIN = 1.05


@dataclass(eq=False)
class NetForward(RewrittenForward):
    """The forward of a model whose body is one native call.

    Args:
        net: the body.
        rest: what follows it.
        replaced: the forward that it takes the place of.
        keeps_pixels: whether the mean over pixels keeps dimensions of size 1.
        watch: the modules that are not called any more.
        choice: what was measured.
    """

    net: PackedConvNet
    rest: Any
    replaced: Any
    keeps_pixels: bool
    watch: Watch
    choice: Choice | None = None

    def __post_init__(self) -> None:
        images = self.net.plan.values[0]
        self._shape = (images.channels, *images.size)

    def __call__(self, x: torch.Tensor) -> Any:
        """Other sizes, gradients, tracers, other dtypes and new hooks go layer by layer."""
        fits = x.ndim == 4 and x.shape[1:] == self._shape and x.dtype is torch.float32
        takes = fits and not x.requires_grad and not torch.compiler.is_compiling()
        if not takes or not direct_address(x) or self.watch.finds_hooks():
            return self.replaced(x)
        return self.rest(self.features(x))

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """What the net gives, in the shape that the rest expects."""
        features = self.net(x)
        return features[:, :, None, None] if self.keeps_pixels else features


def use_conv_net(model: nn.Module, example: torch.Tensor, precision: str) -> None:
    """Let one native call run the body of `model` where that is right and faster.

    Args:
        model: with packed convolutions, for inference.
        example: images; for int8 also what the scales of activations are measured on.
        precision: the lowest one that kernels may compute in.
    """
    if example.dtype is not torch.float32:
        return
    if not any("conv_net" in kernel.engines for kernel in kernel_list("conv")):
        reason = "runs layer by layer: no conv kernel packs for the native call 'conv_net'"
        leave_and_report(model, type(model).__name__, reason)
        return
    with torch.inference_mode():
        made = net_forward(model, example, precision)
        if made is None:
            return
        wanted = made[1]
        wanted.choice = _choose(model, wanted, example)
    if wanted.choice.is_sparse:
        model.forward = wanted


def net_forward(
    model: nn.Module, example: torch.Tensor, precision: str
) -> tuple[NetForward, NetForward] | None:
    """Forwards in fp32 and in `precision`; None if no part of the model gives the same as a net."""
    layered = model.forward
    own = model.__dict__.pop("forward", None)  # traced is what the class computes
    try:
        graph = ConvTracer().trace(model)
    except Exception:
        return None
    finally:
        if own is not None:
            model.forward = own
    lowering = lower(model, graph, example)
    if lowering is None or lowering.exit is None:
        return None
    plan, last = plan_of(lowering), lowering.exit
    keeps = last.kwargs.get("keepdim", len(last.args) > 2 and last.args[2])
    keeps_pixels = lowering.mean and (last.op == "call_module" or bool(keeps))
    rest = rest_of(graph, last, model).forward
    watch = Watch(module for module in model.modules() if module is not model)
    fp32 = NetForward(PackedConvNet(plan), rest, layered, keeps_pixels, watch)
    reference = _Reference(model, graph, [last, *lowering.tops])
    reference.run(example)
    # Both precisions run the same steps: fp32 shows whether they are the right ones.
    if not same_output(reference.found[last.name], fp32.features(example)):
        return None
    if precision not in ("int8", "int4"):
        return fp32, fp32
    found = [reference.found[node.name] for node in lowering.tops]
    tops = [float(x.abs().amax()) if x.numel() else 0.0 for x in found]
    try:
        net = PackedConvNet(plan, tops)
    except KernelMissing:
        return fp32, fp32  # int8 is the lowest precision allowed, and fp32 is what there is
    return fp32, NetForward(net, rest, layered, keeps_pixels, watch)


class _Reference(fx.Interpreter):
    """Runs a model in fp32, its sparse convolutions dense, and keeps what some nodes gave."""

    def __init__(self, model: nn.Module, graph: fx.Graph, nodes: list[fx.Node]) -> None:
        super().__init__(fx.GraphModule(model, graph))
        self._names = {node.name for node in nodes}  # the module's graph is a copy
        self.found: dict[str, torch.Tensor] = {}

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A module, but for sparse convolutions, which may compute in int8."""
        module = self.fetch_attr(target)
        if not isinstance(module, PackedConv2d):
            return super().call_module(target, args, kwargs)
        return module.settings.apply(args[0], module.dense_weight(), module.bias)

    def run_node(self, n: fx.Node) -> Any:
        """One node."""
        y = super().run_node(n)
        if n.name in self._names:
            # A later node may be one that changes its input in place.
            self.found[n.name] = y.clone()
        return y


def _choose(model: nn.Module, net: NetForward, example: torch.Tensor) -> Choice:
    name = "conv_net" if net.net.precision == "fp32" else "conv_net-int8"
    if not settings.tuning_enabled():
        return Choice(len(example), name, "fixed rule (GOSSAMER_TUNE=off)")
    times = duel(lambda: model(example), lambda: net(example))
    wins = times.ratio >= _MARGIN
    why = f"{times.ratio:.2f}x layer by layer" + ("" if wins else ", which runs")
    kernel = name if wins else "dense"
    return Choice(len(example), kernel, why, *times.us, times.spread, times.doubt)
