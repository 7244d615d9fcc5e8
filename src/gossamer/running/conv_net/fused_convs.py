# SPDX-License-Identifier: Apache-2.0
"""ReLUs and residual sums computed by the sparse convolution before them.

Both are a walk over all pixels; the kernel does them on accumulators that are in cache anyway.
What follows a convolution is read from the traced graph, which then runs in the place of the
model's own `forward`; modules and their names stay, and called by themselves they do what they did.
A model that cannot be traced, or that gives another result for the example, stays as it is.
"""

import inspect
import operator
import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from gossamer.nn.layers.parts import SparseLayer
from gossamer.nn.surgery.carried import Watch, carried_by_calls
from gossamer.nn.surgery.left import LEFT, leave
from gossamer.ops.fallback import report_fallback
from gossamer.running.packed import PackedConv2d

# A rewritten network rounds differently; a wrong rewriting changes the result by far more.
_TOLERANCE = 1e-3
_RELUS = (F.relu, torch.relu, torch.relu_, F.relu_, "relu", "relu_")
_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_", "__add__", "__iadd__")


class RewrittenForward:
    """A forward that `compile` put into the place of another; to torch.export it looks like that.

    Attributes:
        replaced: the forward before it, a bound method or another of these.
    """

    replaced: Any

    @property
    def __code__(self) -> Any:
        return self.replaced.__code__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.replaced)


class FusedForward(RewrittenForward):
    """The forward of a model whose convolutions do more than they say.

    Args:
        model: gets it.
        fused: the rewritten graph.
    """

    def __init__(self, model: nn.Module, fused: fx.GraphModule) -> None:
        self.fused = fused
        self.replaced = types.MethodType(type(model).forward, model)
        self._watch = Watch(m for m in model.modules() if m is not model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Where a module was hooked since, all are called one by one."""
        if not torch.compiler.is_compiling() and self._watch.finds_hooks():
            return self.replaced(*args, **kwargs)
        return self.fused.forward(*args, **kwargs)


def may_rewrite_forward(model: nn.Module) -> bool:
    """Whether the forward of `model` is that of its class; one of an earlier `compile` is undone.

    Modules inside whose calls carry something stay modules that are called; they are reported.
    """
    if not any(isinstance(module, PackedConv2d) for module in model.modules()):
        return False
    for name, module in model.named_modules():
        reason = carried_by_calls(module) if name else None  # hooks of the model run around it
        known = "choices" in module.__dict__ or LEFT in module.__dict__
        if reason is not None and not known and not isinstance(module, nn.Linear):
            leave_and_report(module, name, f"nothing is fused with it: {reason}")
    if isinstance(model.__dict__.get("forward"), RewrittenForward):
        del model.forward
    if "forward" in model.__dict__ or model.__dict__.get("_compiled_call_impl") is not None:
        reason = "runs layer by layer: the forward of the model was replaced or compiled by itself"
        leave_and_report(model, type(model).__name__, reason)
        return False
    return True


def leave_and_report(module: nn.Module, name: str, reason: str) -> None:
    """Say why a module stays what it is: to `explain`, and as a fallback."""
    leave(module, reason)
    report_fallback(name, reason)


def fuse_convs(model: nn.Module, example: torch.Tensor) -> None:
    """Let sparse convolutions of `model` take over what follows them."""
    try:
        graph = ConvTracer().trace(model)
    except Exception:
        return
    if not _fuse(model, graph):
        return
    graph.lint()
    fused = fx.GraphModule(model, graph).eval()
    with torch.inference_mode():
        if same_output(model(example), fused(example)):
            model.forward = FusedForward(model, fused)


def same_output(first: Any, second: Any) -> bool:
    """Whether two outputs agree within rounding: tensors, or tuples, lists and dicts of them."""
    if isinstance(first, torch.Tensor):
        scale = float(first.abs().max()) if first.numel() else 0.0
        return first.shape == second.shape and torch.allclose(
            first, second, rtol=0.0, atol=_TOLERANCE * scale, equal_nan=True
        )
    if isinstance(first, dict):
        return all(same_output(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return all(same_output(a, b) for a, b in zip(first, second, strict=True))
    return True


class ConvTracer(fx.Tracer):
    """Sparse layers are nodes, not what they are made of."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module stays a node."""
        # What a hook does would be traced once and never run again.
        stays = isinstance(m, SparseLayer) or carried_by_calls(m) is not None
        return stays or super().is_leaf_module(m, module_qualified_name)


def _fuse(model: nn.Module, graph: fx.Graph) -> bool:
    """Rewrite the graph; whether there was anything to fuse."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op == "call_module" and _is_plain(modules[node.target], nn.Identity):
            _take_over(graph, node, node.args[0])  # a BatchNorm that was folded
    fused = False
    for node in list(graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], PackedConv2d):
            continue
        if len(node.args) != 1 or node.kwargs:
            continue
        user = only_user(node)
        if user is not None and is_plain_sum(user):
            others = [a for a in user.args if a is not node and isinstance(a, fx.Node)]
            if len(others) == 1:
                # The convolution in the place of the sum, where the other summand is known.
                with graph.inserting_before(user):
                    total = graph.call_module(str(node.target), (*node.args, *others))
                _take_over(graph, user, total)
                graph.erase_node(node)
                node, user, fused = total, only_user(total), True
        if user is not None and is_relu(user, modules):
            node.update_kwarg("activation", "relu")
            _take_over(graph, user, node)
            fused = True
    return fused


def _take_over(graph: fx.Graph, old: fx.Node, new: fx.Node) -> None:
    old.replace_all_uses_with(new)
    graph.erase_node(old)


def only_user(node: fx.Node) -> fx.Node | None:
    """Who reads the output of a node, if it is one; None if it is not."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a node is a ReLU."""
    if node.op == "call_module":
        return _is_plain(modules[str(node.target)], nn.ReLU)
    return node.op in ("call_function", "call_method") and node.target in _RELUS


def _is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    return type(module) is kind and carried_by_calls(module) is None


def is_plain_sum(node: fx.Node) -> bool:
    """Whether a node adds two things and does nothing else."""
    is_sum = node.op in ("call_function", "call_method") and node.target in _SUMS
    return is_sum and len(node.args) == 2 and not node.kwargs
