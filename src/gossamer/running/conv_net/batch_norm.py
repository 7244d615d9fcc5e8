# SPDX-License-Identifier: Apache-2.0
"""BatchNorm2d folded into the convolution before it: one layer less at inference.

With the running statistics a BatchNorm is a scale and a shift per channel, so it becomes part of
the weight and the bias. Which convolution is followed by which BatchNorm is read from the traced
graph; where the model cannot be traced, from a run of an example, whose result must stay the same;
without an example, from neighbours in nn.Sequential.
"""

import itertools
import weakref
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from gossamer.nn import replace_module
from gossamer.nn.batch import call_on_batch
from gossamer.nn.forms import in_form_of
from gossamer.nn.layer_kinds import kind_name, weight_of
from gossamer.nn.surgery.carried import carried, hand_over, leave
from gossamer.ops import report_fallback
from gossamer.ops.conv import ConvSettings
from gossamer.running.conv_net.fused_convs import ConvTracer
from gossamer.running.conv_net.same_output import same_output

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
    replaced: list[tuple[nn.Module, nn.Module]] = []
    places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    names = {id(module): name for name, module in model.named_modules()}
    for conv, norm in pairs:
        if places[id(conv)] != 1 or places[id(norm)] != 1 or id(conv) in settled:
            continue
        if not _is_foldable(conv, norm):
            continue
        reason = carried(norm)
        if reason is not None:
            leave(norm, f"is not folded into its convolution: {reason}")
            report_fallback(names[id(norm)], f"is not folded into its convolution: {reason}")
        elif carried(conv) is None:  # else the convolution stays what it is, and says why
            for old, new in ((conv, _folded(conv, norm)), (norm, nn.Identity())):
                hand_over(new, old)
                replace_module(model, old, new)
                replaced.append((old, new))
    return replaced


def _is_foldable(conv: Any, norm: nn.BatchNorm2d) -> bool:
    return (
        norm.running_mean is not None
        and norm.running_var is not None
        and norm.num_features == conv.out_channels
        and not norm.training
    )


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
    dense.eval()
    return in_form_of(conv, dense)


def _traced_pairs(model: nn.Module) -> list[Pair] | None:
    """Convolutions whose only use is a BatchNorm; None if the model cannot be traced."""
    if "forward" in model.__dict__:
        return None  # traced would be what the class computes
    try:
        graph = ConvTracer().trace(model)
    except Exception:
        return None
    modules = dict(model.named_modules(remove_duplicate=False))
    calls = Counter(id(modules[n.target]) for n in graph.nodes if n.op == "call_module")
    pairs: list[Pair] = []
    for node in graph.nodes:
        if node.op != "call_module" or len(node.users) != 1:
            continue
        conv, (user,) = modules[node.target], node.users
        norm = modules[user.target] if user.op == "call_module" else None
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

    handles = []
    for module in model.modules():
        if kind_name(module) == "conv":
            handles.append(module.register_forward_hook(after_conv))
        elif isinstance(module, nn.BatchNorm2d):
            handles.append(module.register_forward_pre_hook(before_norm))
    try:
        with torch.no_grad():
            result = call_on_batch(model, example)
    finally:
        for handle in handles:
            handle.remove()
    once = [pair for pair in pairs if all(calls[id(module)] == 1 for module in pair)]
    return result, once


def _sequential_pairs(model: nn.Module) -> Iterator[Pair]:
    for parent in model.modules():
        runs_in_turn = type(parent).forward is nn.Sequential.forward
        if isinstance(parent, nn.Sequential) and runs_in_turn and "forward" not in parent.__dict__:
            children = list(parent)
            for conv, norm in itertools.pairwise(children):
                if kind_name(conv) == "conv" and isinstance(norm, nn.BatchNorm2d):
                    yield conv, norm
