# SPDX-License-Identifier: Apache-2.0
"""From the file of another tool to its modifiers: plain values, each with its line.

Such files have what our own recipes do without: tags (`!GMPruningModifier`), anchors and aliases,
`eval(num_epochs - 2)` over variables, stages, Markdown around the YAML. What an alias repeats is
counted each time. Expressions may add, subtract, multiply, divide, and take the smallest or the
largest; they are read, never run.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from gossamer.recipes.faults import Fault, RecipeFaults
from gossamer.recipes.phrases import plain, show
from gossamer.recipes.yaml_lines import MAX_BYTES, MAX_DEPTH, MAX_VALUES, read_scalar

_EXPRESSION = re.compile(r"eval\((.*)\)", re.DOTALL)
_MAX_EXPRESSION = 200
_OPERATIONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max}


@dataclass
class Modifier:
    """One entry of a foreign recipe.

    Attributes:
        name: its class there, such as "GMPruningModifier".
        source: the file.
        line: where it begins.
        settings: its fields, variables filled in; `take` removes them.
    """

    name: str
    source: str
    line: int
    settings: dict[str, Any] = field(default_factory=dict)

    def take(self, name: str, default: Any = None) -> Any:
        """The value of a field, once."""
        return self.settings.pop(name, default)

    def number(self, name: str, default: float | None = None) -> float:
        """The number in a field; a fault where there is none and no default."""
        value = self.settings.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RecipeFaults([self.fault(name, f"expected a number, got {show(value)}.")])
        return float(value)

    def fault(self, name: str, message: str) -> Fault:
        """What is wrong with a field, or with the modifier where the field is ""."""
        path = f"{plain(self.name)}.{plain(name)}" if name else plain(self.name)
        return Fault(self.source, self.line, path, message)


def read_modifiers(raw: bytes, source: str) -> list[Modifier]:
    """All modifiers of the file, in its order."""
    if len(raw) > MAX_BYTES:
        _refuse(source, None, f"has more than {MAX_BYTES} bytes, the most such a file may have.")
    try:
        text, offset = _front_matter(raw.decode("utf-8-sig"))
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError:
        _refuse(source, None, "is not UTF-8. Save it as UTF-8 text.")
    except RecursionError:
        _refuse(source, None, f"is nested deeper than {MAX_DEPTH} levels.")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1 + offset
        _refuse(source, line, f"is not valid YAML: {getattr(error, 'problem', None) or error}.")
    if not isinstance(root, yaml.MappingNode | yaml.SequenceNode):
        _refuse(source, None, "holds no modifiers; is it a recipe of SparseML or llm-compressor?")
    reader = _Reader(source, offset)
    if isinstance(root, yaml.SequenceNode):  # A bare list of modifiers.
        found = list(reader.modifiers(root, {}))
    else:
        found = list(reader.mapping(root, {}))
    if not found:
        _refuse(source, None, "holds no modifiers; is it a recipe of SparseML or llm-compressor?")
    return found


def _front_matter(text: str) -> tuple[str, int]:
    """The YAML of a Markdown page, or all of the text; and how many lines stand before it."""
    lines = text.splitlines()
    rules = [number for number, line in enumerate(lines) if line.rstrip() == "---"]
    if not rules:
        return text, 0
    before = re.sub(r"<!--.*?-->", "", "\n".join(lines[: rules[0]]), flags=re.DOTALL)
    if before.strip():  # YAML that ends with a line of dashes.
        return "\n".join(lines[: rules[0]]), 0
    end = rules[1] if len(rules) > 1 else len(lines)
    return "\n".join(lines[rules[0] + 1 : end]), rules[0] + 1


@dataclass
class _Reader:
    source: str
    offset: int
    count: int = 0

    def mapping(
        self, node: yaml.MappingNode, outer: Mapping[str, Any], depth: int = 0
    ) -> Iterator[Modifier]:
        """Modifiers of a file or of one of its stages; the other entries are variables."""
        if depth > 2:
            _refuse(self.source, self._line(node), "has stages inside stages.")
        entries = [(self._key(key), value) for key, value in node.value]
        groups = [(k, v) for k, v in entries if k.endswith(("modifiers", "_stage"))]
        plain_ones = [(k, self._value(v)) for k, v in entries if (k, v) not in groups]
        variables = {**outer, **dict(plain_ones)}
        for name, value in groups:
            if name.endswith("_stage") and isinstance(value, yaml.MappingNode):
                yield from self.mapping(value, variables, depth + 1)
            elif isinstance(value, yaml.SequenceNode | yaml.MappingNode):
                yield from self.modifiers(value, variables)
            elif not (isinstance(value, yaml.ScalarNode) and not value.value):
                _refuse(self.source, self._line(value), f"{plain(name)}: expected modifiers.")

    def modifiers(
        self, node: yaml.SequenceNode | yaml.MappingNode, variables: Mapping[str, Any]
    ) -> Iterator[Modifier]:
        """Tagged entries of a list, or a mapping from names to fields."""
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                yield self._modifier(self._key(key), value, self._line(key), variables)
            return
        for item in node.value:
            if item.tag.startswith("!"):
                yield self._modifier(item.tag[1:], item, self._line(item), variables)
            elif isinstance(item, yaml.MappingNode):
                yield from self.modifiers(item, variables)
            else:
                _refuse(self.source, self._line(item), "expected a modifier, such as !GMPruning...")

    def _modifier(
        self, name: str, node: yaml.Node, line: int, variables: Mapping[str, Any]
    ) -> Modifier:
        settings = self._value(node, tagged=True)
        if settings in (None, ""):
            settings = {}
        if not isinstance(settings, dict):
            _refuse(self.source, line, f"{plain(name)}: expected fields, got {show(settings)}.")
        filled = {key: self._filled(value, variables, line) for key, value in settings.items()}
        return Modifier(name, self.source, line, filled)

    def _value(self, node: yaml.Node, depth: int = 0, tagged: bool = False) -> Any:
        """Plain data of a node; what aliases repeat is counted each time."""
        self.count += 1
        line = self._line(node)
        if self.count > MAX_VALUES or depth >= MAX_DEPTH:
            _refuse(self.source, line, f"has over {MAX_VALUES} values or {MAX_DEPTH} levels.")
        if node.tag.startswith("!") and not tagged:
            _refuse(self.source, line, f"the tag {show(node.tag)} stands where a value should be.")
        if isinstance(node, yaml.ScalarNode):
            return read_scalar(node.value) if node.style is None else node.value
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, depth + 1) for item in node.value]
        return {self._key(key): self._value(value, depth + 1) for key, value in node.value}

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            _refuse(self.source, self._line(node), "a key must be a word.")
        return str(node.value)

    def _filled(self, value: Any, variables: Mapping[str, Any], line: int) -> Any:
        """The value with `eval(...)` carried out, in lists and mappings too."""
        if isinstance(value, list):
            return [self._filled(item, variables, line) for item in value]
        if isinstance(value, dict):
            return {key: self._filled(item, variables, line) for key, item in value.items()}
        match = _EXPRESSION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        try:
            return _evaluated(match[1], variables, ())
        except (ValueError, SyntaxError, TypeError, ArithmeticError) as error:
            reason = error if isinstance(error, ValueError) else "only + - * / min max are known"
            _refuse(self.source, line, f"{show(value)} cannot be computed: {reason}.")

    def _line(self, node: yaml.Node) -> int:
        return int(node.start_mark.line) + 1 + self.offset


def _evaluated(text: str, variables: Mapping[str, Any], seen: tuple[str, ...]) -> Any:
    """The value of an expression; ValueError says what it lacks."""
    if len(text) > _MAX_EXPRESSION or len(seen) > MAX_DEPTH:
        raise ValueError("it is too long")

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in seen or node.id not in variables:
                what = "refers to itself" if node.id in seen else "is not defined"
                raise ValueError(f"{node.id} {what}")
            held = variables[node.id]
            inner = _EXPRESSION.fullmatch(held) if isinstance(held, str) else None
            return held if inner is None else _evaluated(inner[1], variables, (*seen, node.id))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](*map(_number, map(value, (node.left, node.right))))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = None if node.keywords or not node.args else _FUNCTIONS.get(node.func.id)
            if function is not None:
                return function(*[_number(value(item)) for item in node.args])
        raise ValueError("only + - * / min max are known")

    return value(ast.parse(text.strip(), mode="eval").body)


def _number(value: Any) -> float:
    """Texts and lists are not computed with: they could grow without bound."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{show(value)} is not a number")
    return value


def _refuse(source: str, line: int | None, message: str) -> NoReturn:
    raise RecipeFaults([Fault(source, line, "", message)])
