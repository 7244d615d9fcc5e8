# SPDX-License-Identifier: Apache-2.0
"""Turns a pruned model into one that runs: packed layers where they are faster, dense elsewhere."""

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from gossamer.errors import InputError, KernelMissing, TargetError
from gossamer.nn.batch import call_on_batch, input_shapes
from gossamer.nn.layer_kinds import form_of
from gossamer.nn.layer_weights import density_of, weight_of
from gossamer.nn.layers.stand_in import WeightStandIn
from gossamer.nn.surgery import (
    READ_BY_ATTENTION,
    attention_outputs,
    disable_fast_paths,
    replace_module,
)
from gossamer.nn.surgery.carried import call_hooks, carried, hand_over
from gossamer.nn.surgery.left import leave
from gossamer.ops.engines.encoder import PackedEncoder
from gossamer.ops.fallback import report_fallback
from gossamer.patterns import Pattern
from gossamer.running.choice import Choice, Chooser, Forced
from gossamer.running.conv_net import (
    fold_batch_norms,
    fuse_convs,
    may_rewrite_forward,
    use_conv_net,
)
from gossamer.running.encoder import choose_encoder, find_encoders, pack_encoder, shorten_forward
from gossamer.running.layers.graphs import use_graph_layers
from gossamer.running.packed import MIN_SPARSITY, Job, StaysDense, pack_layer, tables_on_grids

READ_BY_MODEL = "the model computes with its weight itself, beside calling the layer or instead"


def compile(
    model: nn.Module,
    tokens: int | Sequence[int] = (1, 128),
    threads: int | None = None,
    inplace: bool = False,
    *,
    precision: str = "fp32",
    kernel: str | None = None,
    chooser: Chooser | None = None,
    example: Any = None,
) -> nn.Module:
    """An inference model whose pruned layers run on sparse kernels where these measure faster.

    Every masked or compact Linear, and every plain one with exact zeros, is timed against its dense
    form for each of `tokens` (rows of the activation) on this machine; `explain` shows the result.
    Layers of a known encoder (BERT, ModernBERT, ViT, ...) are also packed for one native call
    without padding, which replaces them where it measures faster. Convolutions are timed on the
    image sizes of `example`. A BatchNorm2d that follows one, sparse or dense, is folded into it
    with its running statistics. ReLUs and residual sums behind sparse ones are computed by their
    kernel if the model can be traced; residual networks and the like run as one native call for
    images of the example's size, where that measures faster. With `precision="int8"` that call has
    scales of activations measured on `example`: give a batch of typical images.

    Convolutions of PyG become layers of `gossamer.graph` that compute the same; give the number of
    nodes as `tokens`. One that is not known stays, with the reason in `explain`.

    The new model is in eval mode, shares every tensor it does not replace with `model` and takes no
    gradients. Packed weights are copies: compile again after changing the model. A layer that
    carries what a packed one could not keep stays as it was, with the reason in `explain`, an error
    under `strict`: hooks, a forward of its own, a parametrization, further tensors or modules.
    16-bit layers are computed in float32.

    Args:
        model: any module.
        tokens: numbers of tokens (batch x sequence) that will be used.
        threads: threads to measure with; None = torch.get_num_threads().
        inplace: convert `model` itself and free dense weights on the way.
        precision: the lowest precision kernels may compute in: "fp32", "bf16", "int8" or
            "int4" (weights, for few tokens). Lower ones change results: measure the quality.
        kernel: force this one wherever it accepts a layer, unmeasured, and dense elsewhere.
        chooser: decides dense or sparse; None = measure, or the rule of GOSSAMER_TUNE=off.
        example: an input of the model, a tensor or a tuple or dict of arguments. It is run a few
            times, to learn the sizes of images and which weights the model computes with itself,
            as in `F.linear(x, self.a.weight)`; such layers stay dense. Without it convolutions
            stay dense, and such a model ends in an error that says so.
    """
    counts = _check_tokens(tokens)
    fast = model if inplace else _copy_sharing_tensors(model)
    fast.eval().requires_grad_(False)
    with _num_threads(threads):
        decide = chooser or (Chooser() if kernel is None else Forced(kernel))
        fast = use_graph_layers(fast)
        fast, settled = _settle_read_weights(fast, example, counts)
        fold_batch_norms(fast, example, settled)
        shapes = input_shapes(fast, example, "conv", "compile")
        encoders = _pack_encoders(fast, precision) if kernel is None else []
        fast = _pack_tables(fast, example, counts)
        for where, module in _layers(fast):
            if id(module) in settled or not _could_gain(module):
                continue
            refused = carried(module)
            if refused is None:
                job = Job.of(where, module, counts, shapes, decide, precision)
                new = _settle(pack_layer(job), job)
            else:
                new = _stay(module, module, where, counts, refused)
            fast = _put(fast, module, new)
        for stock, packed in encoders:
            fast = _put(fast, stock, choose_encoder(stock, packed, counts, decide))
        decide.save()
    if isinstance(example, torch.Tensor) and may_rewrite_forward(fast):
        fuse_convs(fast, example)
        if kernel is None:
            with _num_threads(threads):
                use_conv_net(fast, example, precision)
    shorten_forward(fast)
    disable_fast_paths(fast)
    return fast


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Layers of a kind that are not packed yet, with the names that messages give them."""
    return [
        (name or type(module).__name__, module)
        for name, module in model.named_modules()
        if form_of(module) not in (None, "packed")
    ]


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """The model with `new` in the place of `old`, which may be the model itself."""
    if new is old:
        return model
    hand_over(new, old)
    if old is model:
        return new
    replace_module(model, old, new)
    return model


def _could_gain(module: nn.Module) -> bool:
    """Whether a layer is pruned, or has so many zeros that a kernel may gain from them."""
    if form_of(module) != "dense":
        return True
    with torch.no_grad():
        weight: Any = module.weight  # of subclasses, too: it may be computed
    if not isinstance(weight, torch.Tensor) or isinstance(weight, UninitializedParameter):
        return False
    return density_of(module) <= 1 - MIN_SPARSITY


def _settle_read_weights(
    model: nn.Module, example: Any, counts: tuple[int, ...]
) -> tuple[nn.Module, set[int]]:
    """Make layers dense whose weight is computed with outside of them; the model and their ids."""
    layers, outputs = _layers(model), attention_outputs(model)
    others = [layer for _, layer in layers if id(layer) not in outputs and carried(layer) is None]
    read = _weights_read(model, example, others)
    settled = set()
    for where, layer in layers:
        if id(layer) not in read | outputs:
            continue
        new = layer
        if _could_gain(layer):
            new = _as_dense(layer) if carried(layer) is None else layer
            reason = READ_BY_ATTENTION if id(layer) in outputs else READ_BY_MODEL
            _stay(new, layer, where, counts, reason)
        model = _put(model, layer, new)
        settled.add(id(new))
    return model, settled


def _weights_read(model: nn.Module, example: Any, layers: Iterable[nn.Module]) -> set[int]:
    """Ids of those of `layers` whose weight `model` uses outside of them; empty without an example.

    `F.linear(x, self.a.weight)` never calls layer `a`, so nothing but the dense weight will do
    there. In a run of the example every layer is behind a stand-in: a look at `weight.dtype` or its
    shape is answered as a packed layer would answer it, and any other use is noted and gets the
    real weight.

    Args:
        model: in eval mode; it comes back as it was.
        example: what the model is called with, see `gossamer.nn.batch.call_on_batch`.
        layers: Linear and Conv2d, stock, masked or compact.
    """
    probes = [_Probe(layer) for layer in layers if layer is not model]
    if example is None or not probes:
        return set()
    for probe in probes:
        replace_module(model, probe.layer, probe)
    try:
        with torch.no_grad():
            call_on_batch(model, example)
    except Exception:
        # Something cannot take a stand-in. If it is the model, its next run says so.
        return {id(probe.layer) for probe in probes if probe.was_read}
    finally:
        for probe in probes:
            replace_module(model, probe, probe.layer)
    return {id(probe.layer) for probe in probes if probe.was_used}


class _Probe(nn.Module):
    """A layer that notes who reads its weight."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer: Any = layer
        self.was_read = self.was_used = False

    @property
    def weight(self) -> torch.Tensor:
        self.was_read = True
        weight = self.layer.weight
        return WeightStandIn(tuple(weight.shape), weight.dtype, weight.device, self._give)

    def _give(self) -> torch.Tensor:
        self.was_used = True
        return weight_of(self.layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.layer(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


def _pack_encoders(model: nn.Module, precision: str) -> list[tuple[nn.Module, PackedEncoder]]:
    """Encoders that one native call can run, read before their layers are replaced."""
    found = []
    for name, encoder in find_encoders(model):
        try:
            packed = pack_encoder(encoder, precision)
        except (TargetError, KernelMissing) as reason:
            why = f"runs layer by layer: {reason}"
            leave(encoder, why)
            report_fallback(name or type(encoder).__name__, why)
            continue
        if packed.precision != "fp32" or packed.density <= 1 - MIN_SPARSITY:
            found.append((encoder, packed))
    return found


def _pack_tables(model: nn.Module, example: Any, counts: tuple[int, ...]) -> nn.Module:
    """Tables of int8 and int4 files as their codes, unless the model computes with their rows."""
    found = list(tables_on_grids(model, counts[0]))
    read = _weights_read(model, example, [stock for stock, _ in found])
    for stock, packed in found:
        if id(stock) not in read:
            model = _put(model, stock, packed)
    return model


def _as_dense(layer: Any) -> Any:
    """A stock layer with exact zeros and no gradients."""
    return layer if form_of(layer) == "dense" else layer.to_dense().eval().requires_grad_(False)


def _settle(result: nn.Module | StaysDense, job: Job) -> nn.Module:
    """What takes the place of a layer."""
    if not isinstance(result, StaysDense):
        return result
    dense = _as_dense(job.layer)
    if result.reason:
        return _stay(dense, job.layer, job.name, job.counts, result.reason)
    return _annotated(dense, getattr(job.matrix, "pattern", None), result.choices)


def _stay(new: Any, old: nn.Module, name: str, counts: tuple[int, ...], reason: str) -> nn.Module:
    """`new`, which is not packed and stands in the place of `old` or is it."""
    report_fallback(name, reason)
    choices = tuple(Choice(count, "dense", reason) for count in counts)
    return _annotated(new, getattr(old, "pattern", None), choices)


def _annotated(layer: Any, pattern: Pattern | None, choices: tuple[Choice, ...]) -> nn.Module:
    """A layer that stayed dense, with the reasons left on it for `explain`."""
    layer.pattern, layer.choices = pattern, choices
    return layer  # type: ignore[no-any-return]


def _check_tokens(tokens: int | Sequence[int]) -> tuple[int, ...]:
    counts = tuple(tokens) if isinstance(tokens, Sequence) else (tokens,)
    if not counts or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in counts):
        raise InputError(
            f"compile: tokens must be one or more positive integers, got {tokens!r}."
            " It is the number of activation rows, batch x sequence length: tokens=(1, 128)."
        )
    return tuple(sorted(set(counts)))


@contextlib.contextmanager
def _num_threads(threads: int | None) -> Iterator[None]:
    if threads is None:
        yield
        return
    if not isinstance(threads, int) or threads < 1:
        raise InputError(f"compile: threads must be a positive integer or None, got {threads!r}.")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _copy_sharing_tensors(model: nn.Module) -> nn.Module:
    """A copy whose modules are new and whose tensors are the original's storage.

    Hooks are shared as well: what a hook of the model records into, its copy records into.
    """
    memo: dict[int, object] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    modules = list(model.modules())
    for module in modules:
        for value in module.__dict__.values():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                # Computed by a hook, as torch.nn.utils.prune does; torch cannot copy it.
                memo[id(value)] = value.detach()
        for hook in call_hooks(module):
            if not any(owner is getattr(hook, "__self__", None) for owner in modules):
                memo[id(hook)] = hook
    return copy.deepcopy(model, memo)
