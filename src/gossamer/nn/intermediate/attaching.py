# SPDX-License-Identifier: Apache-2.0
"""Outputs are given their sparsifiers: hooks where a module returns them, a mode where it does not.

Both are seen by torch.compile and torch.export, which record what they compute. The mode is entered
by the forward of the one module that calls the operator; modules inside it shield their own calls.
A method put on the instance does that, which a deep copy takes along bound to the copy.
"""

import types
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from gossamer.errors import InputError
from gossamer.nn.intermediate.output import OutputRule, SparseOutput
from gossamer.nn.intermediate.sites import Key, ModelRun, Site, matching, watch
from gossamer.ops.operators import operator_of, works_in_place
from gossamer.ops.operators.compressed import has_compressed
from gossamer.ops.operators.running import run_function

Rules = Mapping[str, "str | SparseOutput"]
_RULES = "_output_rules"


class _Operators(TorchFunctionMode):
    """Applies the rules of one module to the operators its forward calls; none: a shield."""

    def __init__(self, rules: Mapping[Key, OutputRule]) -> None:
        super().__init__()
        self.rules = rules
        self.calls: dict[str, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        operator = operator_of(func)
        if operator is None:
            return func(*args, **(kwargs or {}))
        call = self.calls.get(operator, 0)
        self.calls[operator] = call + 1
        # Modes of modules around this one must not count the call as theirs.
        with torch._C.DisableTorchFunction():
            result = self._run(operator, call, func, args, kwargs or {})
            if works_in_place(func) and result is not args[0]:
                return args[0].copy_(result)
            return result

    def _run(self, operator: str, call: int, func: Any, args: Any, kwargs: Any) -> Any:
        rules = {key[2]: rule for key, rule in self.rules.items() if key[:2] == (operator, call)}
        if 0 in rules:
            result = rules[0].run(operator, func, args, kwargs)
            if isinstance(result, torch.Tensor):
                return result
        elif has_compressed((*args, *kwargs.values())):
            result = run_function(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        return each_part(result, rules) if rules else result


def each_part(result: Any, rules: Mapping[int, OutputRule]) -> Any:
    """A result with its floating point tensors, counted from 0, made sparse by their rules."""
    return _with_parts(result, rules, [0])


def _with_parts(result: Any, rules: Mapping[int, OutputRule], count: list[int]) -> Any:
    if isinstance(result, tuple | list):
        parts = [_with_parts(part, rules, count) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return result
    count[0] += 1
    rule = rules.get(count[0] - 1)
    return result if rule is None else rule(result)


def _forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of the module's class, its operators under the rules of the instance."""
    rules = self.__dict__[_RULES]
    if rules and torch.compiler.is_dynamo_compiling() and torch.compiler.is_exporting():
        raise InputError(
            "sparse outputs of operators inside a forward are lost by torch.export(strict=True)."
            " Export with strict=False, which is torch's default."
        )
    with _Operators(rules):
        return type(self).forward(self, *args, **kwargs)


class _ReturnHook:
    """Makes sparse what a module returns."""

    def __init__(self, rules: dict[int, OutputRule]) -> None:
        self.rules = rules

    def __call__(self, module: nn.Module, args: Any, result: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return each_part(result, self.rules)


@dataclass
class Attached:
    """The sparsifiers that a call put on a model.

    Attributes:
        chosen: each output by name, with its rule.
    """

    chosen: dict[str, SparseOutput]
    _hooks: list[Any] = field(default_factory=list, repr=False)
    _modules: list[nn.Module] = field(default_factory=list, repr=False)

    def remove(self) -> None:
        """Take them off again; the model computes as before."""
        for hook in self._hooks:
            hook.remove()
        for module in self._modules:
            module.__dict__.pop("forward", None)
            module.__dict__.pop(_RULES, None)
        self._hooks.clear()
        self._modules.clear()

    def __str__(self) -> str:
        return "\n".join(f"{name}: {output}" for name, output in self.chosen.items())


def sparsify_outputs(model: nn.Module, rules: Rules, example: Any) -> Attached:
    """Make outputs of a model's operators and modules sparse, in place, from now on.

    Args:
        model: is run once to find its outputs, in eval mode and without gradients; then hooks are
            put on it. Copies of it keep them; files do not.
        rules: by name of an output, a sparsifier's text or a `SparseOutput`. A name is that of
            `sites`, a glob, or `re:` and a regular expression; the last that fits an output holds.
        example: input of the model: a tensor, a tuple of arguments, or a dict of named ones.
    """
    for name, module in model.named_modules():
        if _RULES in module.__dict__ or any(
            isinstance(hook, _ReturnHook) for hook in module._forward_hooks.values()
        ):
            raise InputError(
                f"sparsify_outputs: {name or 'the model'} has sparse outputs already. Give all"
                " rules in one call, or remove() what the last call returned."
            )
    run = watch(model, example)
    chosen: dict[Site, SparseOutput] = {}
    for pattern, rule in rules.items():
        output = SparseOutput.of(rule)
        for site in matching(pattern, run.sites):
            chosen[site] = output
    attached = Attached({site.name: chosen[site] for site in run.sites if site in chosen})
    _attach(model, run, {site: _ready(site, output) for site, output in chosen.items()}, attached)
    return attached


def _ready(site: Site, output: SparseOutput) -> OutputRule:
    rule = OutputRule(output, site.name)
    rule.check(site.shape)
    return rule


def _attach(
    model: nn.Module, run: ModelRun, rules: Mapping[Site, OutputRule], attached: Attached
) -> None:
    modules = dict(model.named_modules())
    inside: dict[str, dict[Key, OutputRule]] = defaultdict(dict)
    returns: dict[str, dict[int, OutputRule]] = defaultdict(dict)
    for site, rule in rules.items():
        if not site.key[0]:
            returns[site.module][site.key[2]] = rule
    for site, rule in rules.items():
        alone = (site.module, site.key) in run.returned and site.module not in returns
        if site.key[0] and alone and rule.is_dense:
            returns[site.module] = {0: rule}
        elif site.key[0]:
            inside[site.module][site.key] = rule
    for name, numbered in returns.items():
        attached._hooks.append(modules[name].register_forward_hook(_ReturnHook(numbered)))
    for name in modules:
        is_shield = name in run.callers and any(_is_inside(name, other) for other in inside)
        if name in inside or is_shield:
            _override(modules[name], inside.get(name, {}), attached)


def _is_inside(name: str, other: str) -> bool:
    return name != other and (not other or name.startswith(f"{other}."))


def carry_rules(new: nn.Module, old: nn.Module) -> None:
    """A module that takes the place of another one shields its operators as that did.

    InputError if operators inside the old one have rules: the new one may call others.
    """
    rules = old.__dict__.get(_RULES)
    if rules:
        names = ", ".join(sorted({operator for operator, _, _ in rules}))
        raise InputError(
            f"{type(old).__name__} has sparse outputs of operators inside it ({names}), which"
            f" {type(new).__name__} may not call. remove() them first, or name what the module"
            " returns instead."
        )
    if rules is not None:
        new.__dict__[_RULES] = {}
        new.__dict__["forward"] = types.MethodType(_forward, new)


def _override(module: nn.Module, rules: Mapping[Key, OutputRule], attached: Attached) -> None:
    if "forward" in module.__dict__:
        raise InputError(
            f"sparsify_outputs: {type(module).__name__} has a forward put on the instance by"
            " somebody else (as accelerate does). Take it off first."
        )
    module.__dict__[_RULES] = dict(rules)
    module.__dict__["forward"] = types.MethodType(_forward, module)
    attached._modules.append(module)
