# SPDX-License-Identifier: Apache-2.0
"""A model is looked at and afterwards is as it was: modes, caches, requires_grad, hooks."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode without caches of keys and values inside, everything as it was afterwards.

    Decoders of transformers remember keys and values of every layer for a next token: with all
    batches on their way at once, that is more memory than everything else together.
    """
    modes = {module: module.training for module in model.modules()}
    configs = [getattr(module, "config", None) for module in modes]
    caching = {id(c): c for c in configs if getattr(c, "use_cache", None) is True}.values()
    try:
        model.eval()
        for config in caching:
            setattr(config, "use_cache", False)  # noqa: B010 (its type is not known here)
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for config in caching:
            setattr(config, "use_cache", True)  # noqa: B010


@contextmanager
def kept_flags(model: nn.Module) -> Iterator[None]:
    """Every parameter's requires_grad afterwards as before."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for parameter, flag in before:
            parameter.requires_grad_(flag)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode and its parameters get no gradient; both are restored."""
    with evaluating(model), kept_flags(model):
        model.requires_grad_(False)
        yield


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Hooks that are registered already act inside and are removed afterwards."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
