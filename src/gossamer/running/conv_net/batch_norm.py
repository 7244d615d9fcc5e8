# SPDX-License-Identifier: Apache-2.0
"""BatchNorm2d folded into the convolution before it: one layer less at inference.

With the running statistics a BatchNorm is a scale and a shift per channel, so it becomes part of
the weight and the bias. Which convolution is followed by which BatchNorm is read from the traced
graph; where the model cannot be traced, from a run of an example, whose result must stay the same;
without an example, from neighbours in nn.Sequential.
"""

import contextlib
import itertools
import weakref
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from gossamer.nn.batch import call_on_batch
from gossamer.nn.forms import in_form_of
from gossamer.nn.layer_kinds import kind_name
from gossamer.nn.layer_weights import weight_of
from gossamer.nn.surgery import replace_module
from gossamer.nn.surgery.carried import carried, hand_over
from gossamer.ops.conv import ConvSettings
from gossamer.running.conv_net.fused_convs import (
    ConvTracer,
    leave_and_report,
    only_user,
    same_output,
)

# A convolution in any form, and what follows it.
Pair = tuple[Any, nn.BatchNorm2d]


def fold_batch_norms(model: nn.Module, example: Any, settled: Collection[int] = ()) -> None:
    """Fold every foldable pair of `model`, in place; tensors of the old layers are not changed.

    Args:
        model: in eval mode.
        example: an input of the model, or None.
        settled: ids of convolutions whose weight must stay what it is.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        return
    traced = _traced_pairs(model)
    if traced is not None:
        _fold_all(model, traced, settled)
    elif example is not None:
        before, pairs = _run_and_watch(model, example)
        undo = _fold_all(model, pairs, settled)
        with torch.no_grad():
            if pairs and not same_output(before, call_on_batch(model, example)):
                for old, new in undo:
                    replace_module(model, new, old)
    else:
        _fold_all(model, list(_sequential_pairs(model)), settled)


def _fold_all(
    model: nn.Module, pairs: list[Pair], settled: Collection[int]
) -> list[tuple[nn.Module, nn.Module]]:
    """Replace the pairs that can be folded; (old, new) of everything replaced."""
    replaced = []
    places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    names = {id(module): name for name, module in model.named_modules()}
    for conv, norm in pairs:
        if places[id(conv)] != 1 or places[id(norm)] != 1 or id(conv) in settled:
            continue
        if norm.running_mean is None or norm.running_var is None or norm.training:
            continue
        if norm.num_features != conv.out_channels:
            continue
        reason = carried(norm)
        if reason is not None:
            leave_and_report(norm, names[id(norm)], f"is not folded into its convolution: {reason}")
        elif carried(conv) is None:  # else the convolution stays what it is, and says why
            for old, new in ((conv, _folded(conv, norm)), (norm, nn.Identity())):
                hand_over(new, old)
                replace_module(model, old, new)
                replaced.append((old, new))
    return replaced


@torch.no_grad()
def _folded(conv: Any, norm: nn.BatchNorm2d) -> nn.Module:
    """A layer of the same class whose weight and bias hold the BatchNorm too."""
    weight, bias = fuse_conv_bn_weights(
        weight_of(conv),
        conv.bias,
        norm.running_mean,  # type: ignore[arg-type]
        norm.running_var,  # type: ignore[arg-type]
        norm.eps,
        norm.weight,
        norm.bias,
    )
    dense = ConvSettings.of(conv).build(True, weight.dtype)
    dense.weight = nn.Parameter(weight.detach(), requires_grad=False)
    dense.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return in_form_of(conv, dense.eval())


def _traced_pairs(model: nn.Module) -> list[Pair] | None:
    """Convolutions whose only use is a BatchNorm; None if the model cannot be traced."""
    if "forward" in model.__dict__:
        return None  # traced would be what the class computes
    try:
        graph = ConvTracer().trace(model)
    except Exception:
        return None
    modules = dict(model.named_modules(remove_duplicate=False))
    called = {node: modules[node.target] for node in graph.nodes if node.op == "call_module"}
    calls = Counter(map(id, called.values()))
    pairs = []
    for node, conv in called.items():
        norm = called.get(only_user(node))
        if kind_name(conv) != "conv" or not isinstance(norm, nn.BatchNorm2d):
            continue
        if calls[id(conv)] == calls[id(norm)] == 1:
            pairs.append((conv, norm))
    return pairs


def _run_and_watch(model: nn.Module, example: Any) -> tuple[Any, list[Pair]]:
    """The model's output, and BatchNorms whose input was the output of a convolution."""
    outputs: list[tuple[Any, Any]] = []
    pairs: list[Pair] = []
    calls: Counter[int] = Counter()

    def after_conv(module: nn.Module, _: Any, output: torch.Tensor) -> None:
        calls[id(module)] += 1
        outputs.append((module, weakref.ref(output)))

    def before_norm(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        calls[id(module)] += 1
        for conv, output in outputs:
            if output() is inputs[0]:
                pairs.append((conv, module))  # type: ignore[arg-type]

    with contextlib.ExitStack() as hooks, torch.no_grad():
        for module in model.modules():
            if kind_name(module) == "conv":
                hooks.enter_context(module.register_forward_hook(after_conv))
            elif isinstance(module, nn.BatchNorm2d):
                hooks.enter_context(module.register_forward_pre_hook(before_norm))
        result = call_on_batch(model, example)
    return result, [pair for pair in pairs if all(calls[id(module)] == 1 for module in pair)]


def _sequential_pairs(model: nn.Module) -> Iterator[Pair]:
    for parent in model.modules():
        runs_in_turn = type(parent).forward is nn.Sequential.forward
        if isinstance(parent, nn.Sequential) and runs_in_turn and "forward" not in parent.__dict__:
            for conv, norm in itertools.pairwise(parent):
                if kind_name(conv) == "conv" and isinstance(norm, nn.BatchNorm2d):
                    yield conv, norm
