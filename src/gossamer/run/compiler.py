# SPDX-License-Identifier: Apache-2.0
"""Turns a pruned model into one that runs: packed layers where they are faster, dense elsewhere."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

import gossamer.ops.linear  # noqa: F401  (registers the built-in kernels)
from gossamer.errors import InputError, TargetError
from gossamer.formats import pack
from gossamer.nn import (
    Conv2d,
    Linear,
    MaskedConv2d,
    MaskedLinear,
    MaskedOutProj,
    disable_fast_paths,
    replace_module,
)
from gossamer.nn.input_shapes import input_shapes
from gossamer.ops.dispatch import candidates, report_fallback, report_missing
from gossamer.ops.encoder import PackedEncoder
from gossamer.patterns import Pattern, detect_pattern
from gossamer.run.batch_norm import fold_batch_norms
from gossamer.run.choose import Chooser, Forced
from gossamer.run.contenders import Contenders
from gossamer.run.conv_net import use_conv_net
from gossamer.run.convs import convert_conv
from gossamer.run.encoder import choose_encoder, pack_encoder
from gossamer.run.encoder_layers import find_encoders
from gossamer.run.fused_convs import fuse_convs
from gossamer.run.packed import Choice, PackedLinear
from gossamer.run.short_forward import shorten_forward

# A dense layer with fewer zeros than this is left alone: no kernel gains from it.
_MIN_SPARSITY = 0.1


def compile(
    model: nn.Module,
    tokens: int | Sequence[int] = (1, 128),
    threads: int | None = None,
    inplace: bool = False,
    *,
    precision: str = "fp32",
    kernel: str | None = None,
    chooser: Chooser | None = None,
    example: torch.Tensor | None = None,
) -> nn.Module:
    """An inference model whose pruned layers run on sparse kernels where these measure faster.

    Every masked or compact Linear, and every plain one with exact zeros, is timed against its dense
    form for each of `tokens` (rows of the activation) on this machine; `explain` shows the result.
    The layers of a known encoder (BERT, RoBERTa, DistilBERT) are also packed for one native call
    without padding, which replaces them where it measures faster. Convolutions are timed on the
    image sizes of `example`. A BatchNorm2d that follows one, sparse or dense, is folded into it
    with its running statistics. ReLUs and residual sums behind sparse ones are computed by their
    kernel if the model can be traced; residual networks and the like run as one native call for
    images of the example's size, where that measures faster. With `precision="int8"` that call has
    scales of activations measured on `example`: give a batch of typical images.

    The new model is in eval mode, shares every tensor it does not replace with `model` and takes no
    gradients. Packed weights are copies: compile again after changing the model.

    Args:
        model: any module.
        tokens: numbers of tokens (batch x sequence) that will be used.
        threads: threads to measure with; None = torch.get_num_threads().
        inplace: convert `model` itself and free dense weights on the way.
        precision: the lowest precision kernels may compute in: "fp32", "bf16", "int8" or
            "int4" (weights, for few tokens). Lower ones change results: measure the quality.
        kernel: force this one wherever it accepts a layer, unmeasured, and dense elsewhere.
        chooser: decides dense or sparse; None = measure, or the rule of GOSSAMER_TUNE=off.
        example: an input of the model, run once or twice to learn the sizes of images. Without it
            convolutions stay dense.
    """
    counts = _check_tokens(tokens)
    fast = model if inplace else _copy_sharing_tensors(model)
    fast.eval().requires_grad_(False)
    with _num_threads(threads):
        decide = chooser or (Chooser() if kernel is None else Forced(kernel))
        fold_batch_norms(fast, example)
        shapes = input_shapes(fast, example, (nn.Conv2d, Conv2d), "compile")
        encoders = _pack_encoders(fast, precision) if kernel is None else []
        for name, module in list(fast.named_modules()):
            where = name or type(module).__name__
            if isinstance(module, nn.Conv2d | Conv2d):
                stay_dense = _dense_stayer(where, counts)
                new = convert_conv(module, shapes, decide, _MIN_SPARSITY, stay_dense, precision)
            else:
                new = _convert(where, module, counts, decide, precision)
            if new is module:
                continue
            if module is fast:
                fast = new
            else:
                replace_module(fast, module, new)
        for stock, packed in encoders:
            chosen = choose_encoder(stock, packed, counts, decide)
            if stock is fast:
                fast = chosen
            elif chosen is not stock:
                replace_module(fast, stock, chosen)
        decide.save()
    fuse_convs(fast, example)
    if kernel is None:
        with _num_threads(threads):
            use_conv_net(fast, example, precision)
    shorten_forward(fast)
    disable_fast_paths(fast)
    return fast


def _pack_encoders(model: nn.Module, precision: str) -> list[tuple[nn.Module, PackedEncoder]]:
    """Encoders that one native call can run, read before their layers are replaced."""
    found = []
    for name, encoder in find_encoders(model):
        try:
            packed = pack_encoder(encoder, "int8" if precision in ("int8", "int4") else "fp32")
        except TargetError as reason:
            report_fallback(name or type(encoder).__name__, f"runs layer by layer: {reason}")
            continue
        if packed.precision != "fp32" or packed.density <= 1 - _MIN_SPARSITY:
            found.append((encoder, packed))
    return found


def _convert(
    name: str, module: nn.Module, counts: tuple[int, ...], chooser: Chooser, precision: str
) -> nn.Module:
    """The inference form of one layer, or the layer itself if there is nothing to gain."""
    if isinstance(module, MaskedOutProj):
        return _stay_dense(module, name, counts, "nn.MultiheadAttention reads its weight directly")
    if isinstance(module, MaskedLinear | Linear):
        weight_RK = _dense_weight(module)
        mask_RK, pattern = module.mask(), module.pattern
    elif type(module) is nn.Linear:
        weight_RK = module.weight.detach()
        mask_RK = weight_RK != 0
        if not weight_RK.numel() or mask_RK.float().mean() > 1 - _MIN_SPARSITY:
            return module
        pattern = detect_pattern(mask_RK)
    else:
        return module
    if weight_RK.dtype is not torch.float32 or weight_RK.device.type != "cpu":
        reason = f"kernels are float32 on the CPU, this is {weight_RK.dtype} on {weight_RK.device}"
        return _stay_dense(module, name, counts, reason)
    sparse = pack(weight_RK, mask_RK, pattern)
    kernels = candidates("linear", sparse, precision)
    if not kernels:
        report_missing("linear", sparse.format, name)
    return _pack(module, Contenders(sparse, weight_RK, kernels), counts, chooser)


def _pack(
    module: nn.Linear | Linear, contenders: Contenders, counts: tuple[int, ...], chooser: Chooser
) -> nn.Module:
    choices = tuple(chooser.choose(contenders, count) for count in counts)
    sparse, chosen = contenders.sparse, {choice.kernel for choice in choices}
    if chosen == {"dense"}:
        dense = _as_dense(module)
        _annotate(dense, sparse.pattern, choices)
        return dense
    runs = {k.name: contenders.packed(k) for k in contenders.kernels if k.name in chosen}
    dense_weight = contenders.weight_RK if "dense" in chosen else None
    return PackedLinear(sparse, runs, module.bias, choices, dense_weight)


def _dense_weight(module: MaskedLinear | Linear) -> torch.Tensor:
    if isinstance(module, MaskedLinear):
        return module.masked_weight().detach()
    return module.to_dense().weight.detach()


def _as_dense(module: nn.Module) -> nn.Module:
    """A stock layer with exact zeros and no gradients."""
    if isinstance(module, MaskedLinear | MaskedConv2d | Linear | Conv2d):
        return module.to_dense().eval().requires_grad_(False)
    return module


def _stay_dense(module: nn.Module, name: str, counts: tuple[int, ...], reason: str) -> nn.Module:
    report_fallback(name, reason)
    dense = _as_dense(module)
    pattern = getattr(module, "pattern", None)
    _annotate(dense, pattern, tuple(Choice(n, "dense", None, None, reason) for n in counts))
    return dense


def _dense_stayer(name: str, counts: tuple[int, ...]) -> Callable[[nn.Module, str], nn.Module]:
    return lambda module, reason: _stay_dense(module, name, counts, reason)


def _annotate(dense: nn.Module, pattern: Pattern | None, choices: tuple[Choice, ...]) -> None:
    """Leave the reasons on a layer that stayed dense, for `explain`."""
    dense.pattern = pattern  # type: ignore[assignment]
    dense.choices = choices  # type: ignore[assignment]


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
    """A copy whose modules are new and whose tensors are the original's storage."""
    memo: dict[int, object] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer
    return copy.deepcopy(model, memo)
