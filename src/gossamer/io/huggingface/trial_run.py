# SPDX-License-Identifier: Apache-2.0
"""Whether a model can be built and run, found out without memory: shapes only, no numbers."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from gossamer.errors import ArtifactError
from gossamer.io.huggingface.configurations import CONFIG_FILE, short, unfit
from gossamer.io.huggingface.example_inputs import example_inputs

# Some operators know no float32 without numbers, which says nothing about sizes.
_NOT_SIZES = re.compile(r"dtype|BF16")


@contextmanager
def few_parts(limit: int) -> Iterator[None]:
    """An error as soon as the models built here have more than `limit` modules and tensors."""
    count, thread = 0, threading.get_ident()

    def seen(module: nn.Module, name: str, part: object) -> None:
        nonlocal count
        del module, name, part
        if threading.get_ident() == thread:
            count += 1
            if count > limit:
                raise ArtifactError(
                    f"{CONFIG_FILE}: the model would have more than {limit} modules and tensors."
                )

    hooks = [
        register_module_module_registration_hook(seen),
        register_module_parameter_registration_hook(seen),
        register_module_buffer_registration_hook(seen),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def check_builds(make: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    """A model on the meta device; a configuration that its class refuses is an error."""
    try:
        with torch.device("meta"):
            return make(config).eval()
    except ArtifactError:
        raise
    except Exception as error:
        raise unfit(f"the class of the model refuses it ({short(error, 200)})") from error


def check_runs(model: nn.Module, usual: Callable[[], nn.Module] | None = None) -> None:
    """Refuse a model whose sizes do not fit each other.

    Args:
        model: on the meta device.
        usual: makes a model of the same class with the sizes that transformers gives it; None
            where the family is in our table, so that it surely takes what is made up. If that
            model cannot run either, the input is at fault, and nothing is refused.
    """
    error = _fault(model)
    if error is None:
        return
    if usual is not None:
        if _NOT_SIZES.search(str(error)):
            return
        try:
            with torch.device("meta"):
                works = _fault(usual().eval()) is None
        except Exception:  # what its defaults lack is not for us to say
            works = False
        if not works:
            return
    raise unfit(f"a model with these sizes cannot run ({short(error, 200)})") from error


def _fault(model: nn.Module) -> Exception | None:
    """What a forward without numbers raises; None if it runs, or if nobody knows how to call it."""
    with torch.device("meta"):
        inputs = example_inputs(model)
    try:
        if inputs is not None:
            with torch.device("meta"), torch.no_grad():
                model(**inputs)
    except Exception as error:
        # What looks at numbers cannot be run without any; that is no fault of the sizes.
        unknown = isinstance(error, NotImplementedError) or "meta" in str(error).lower()
        return None if unknown else error
    return None
