# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing for any model: blocks keep their input and run again in backward."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gossamer.errors import InputError


@contextmanager
def recomputing(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Recompute the blocks of `model` in backward while the block runs.

    Blocks are the members of its outermost ModuleLists; a model with a `recompute` setting of its
    own is asked instead.
    """
    if not enabled:
        yield
        return
    if isinstance(getattr(model, "recompute", None), bool):
        before = model.recompute
        model.recompute = True  # type: ignore[assignment]
        try:
            yield
        finally:
            model.recompute = before
        return
    blocks = list(_blocks(model))
    if not blocks:
        raise InputError(
            "recompute: the model has no ModuleList of blocks to run again. Switch recompute off."
        )
    for block in blocks:
        # On the instance: the class and other models of it stay as they are.
        block.forward = _again(block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            # A list of single layers has nothing to throw away between them.
            yield from (block for block in child if any(True for _ in block.children()))
        else:
            yield from _blocks(child)
