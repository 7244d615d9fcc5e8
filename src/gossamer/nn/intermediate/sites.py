# SPDX-License-Identifier: Apache-2.0
"""The outputs a model computes, by name: it is run once, and every module and operator is noted.

`encoder.0.attention/softmax` is the softmax that the forward of that module calls itself;
`.../matmul.0` and `.../matmul.1` are two of its products, `.../chunk:1` the second of several
outputs. `encoder.0.attention` without a slash is what the module returns.
"""

import contextlib
import difflib
import fnmatch
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gossamer.errors import InputError, TargetError
from gossamer.ops.operators import operator_of, works_in_place

# What a call in a module's forward is: operator, its number in that forward, output number.
Key = tuple[str, int, int]


@dataclass(frozen=True)
class Site:
    """One output.

    Attributes:
        name: as rules name it.
        module: dotted name of the module whose forward computes it.
        key: operator, number of the call, number of the output; the operator is empty for what the
            module returns.
        shape: in the run that found it.
        dtype: of that tensor.
    """

    name: str
    module: str
    key: Key
    shape: torch.Size
    dtype: torch.dtype


@dataclass
class ModelRun:
    """What one run of a model showed.

    Attributes:
        sites: all outputs, in the order of computation.
        callers: names of modules whose own forward calls operators.
        returned: operator calls whose only output is what their module returns.
    """

    sites: list[Site]
    callers: set[str]
    returned: set[tuple[str, Key]]


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The floating point tensors of a result, those in tuples and lists one by one."""
    if isinstance(result, tuple | list):
        return [x for part in result for x in tensors_of(part)]
    return [result] if isinstance(result, torch.Tensor) and result.is_floating_point() else []


class _Recorder(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[tuple[str, Counter[str], dict[int, Key]]] = []
        self.found: list[tuple[str, Key, torch.Tensor]] = []
        self.returned: set[tuple[str, Key]] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = operator_of(func)
        if operator is not None and self.open:
            module, calls, made = self.open[-1]
            for number, x in enumerate(tensors_of(result)):
                key = (operator, calls[operator], number)
                self.found.append((module, key, x))
                if isinstance(result, torch.Tensor) and not works_in_place(func):
                    made[id(x)] = key
            calls[operator] += 1
        return result

    def leave(self, result: Any) -> None:
        module, calls, made = self.open.pop()
        for number, x in enumerate(tensors_of(result)):
            self.found.append((module, ("", 0, number), x))
        if isinstance(result, torch.Tensor) and sum(calls.values()) == 1 and id(result) in made:
            self.returned.add((module, made[id(result)]))


def watch(model: nn.Module, example: Any) -> ModelRun:
    """Run a model once, in eval mode and without gradients; its random state stays as it was."""
    args, kwargs = _arguments(example)
    recorder, names = _Recorder(), {m: name for name, m in model.named_modules()}
    modes = [(m, m.training) for m in model.modules()]

    def enter(module: nn.Module, _: Any) -> None:
        recorder.open.append((names[module], Counter(), {}))

    hooks = []
    try:
        for module in names:
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(lambda m, a, result: recorder.leave(result)))
        model.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]), recorder:
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes:
            module.training = training
    return ModelRun(
        _named(recorder.found), {m for m, key, _ in recorder.found if key[0]}, recorder.returned
    )


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (example if isinstance(example, tuple) else (example,)), {}


def _named(found: list[tuple[str, Key, torch.Tensor]]) -> list[Site]:
    """Each output once, with a number behind its name only where there are several."""
    first = {(module, key): x for module, key, x in reversed(found)}
    calls = Counter((module, op, out) for module, (op, _, out) in first)
    outputs = Counter((module, op, call) for module, (op, call, _) in first)
    sites = {}
    for module, key, _ in found:
        operator, call, output = key
        name = f"{module}/{operator}" if operator else module
        name += f".{call}" if calls[module, operator, output] > 1 else ""
        name += f":{output}" if outputs[module, operator, call] > 1 else ""
        x = first[module, key]
        sites[module, key] = Site(name, module, key, x.shape, x.dtype)
    return [site for site in sites.values() if site.name]


def sites(model: nn.Module, example: Any) -> list[Site]:
    """Every output that a rule can name, in the order of computation.

    Args:
        model: is run once, in eval mode and without gradients.
        example: its input: a tensor, a tuple of arguments, or a dict of named ones.
    """
    return watch(model, example).sites


def matching(rule: str, found: list[Site]) -> list[Site]:
    """Sites that a name, a glob or `re:` and a regular expression selects; TargetError if none."""
    if not isinstance(rule, str) or not rule:
        raise TargetError(f"rules: expected names, globs or 're:...', got {rule!r}.")
    chosen = [site for site in found if any(_fits(rule, name) for name in _names(site))]
    if not chosen:
        names = [site.name for site in found]
        near = difflib.get_close_matches(rule, names, n=3, cutoff=0.3) or names[:8]
        raise TargetError(
            f"rules: {rule!r} matched 0 of {len(names)} outputs. Closest: {', '.join(near)}."
            " gossamer.nn.intermediate.sites(model, example) lists all."
        )
    return chosen


def _names(site: Site) -> Iterator[str]:
    yield site.name
    operator, call, _ = site.key
    if operator:
        yield f"{site.module}/{operator}"
        yield f"{site.module}/{operator}.{call}"


def _fits(rule: str, name: str) -> bool:
    if rule.startswith("re:"):
        with contextlib.suppress(re.error):
            return re.match(rule.removeprefix("re:"), name) is not None
        raise InputError(f"rules: {rule!r} is not a regular expression.")
    # A rule without a slash means modules only, whatever its star could reach.
    return ("/" in rule) == ("/" in name) and fnmatch.fnmatchcase(name, rule)
