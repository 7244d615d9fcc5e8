# SPDX-License-Identifier: Apache-2.0
"""YAML as untrusted input, with the line of every value.

Only what a recipe needs: mappings, lists, text, numbers, true, false, null. Plain scalars are
read as in YAML 1.2, because in YAML 1.1 `2:4` is the number 124 and `no` is false. Anchors,
aliases, tags, duplicate keys and second documents are refused; nothing names code.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from gossamer.recipes.faults import Fault, Path, RecipeFaults, dotted, show

MAX_BYTES = 1 << 16
MAX_DEPTH = 16
MAX_VALUES = 10_000

_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", "+.inf", ".Inf", "+.Inf", ".INF", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
# Eighteen digits always fit 64 bits; a longer number stays text and fails where one is expected.
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,5})?")


@dataclass(frozen=True)
class Document:
    """Plain data and where it stood.

    Attributes:
        source: what to call it in messages.
        data: mappings, lists and scalars.
        lines: line of every value, and of every mapping's key, by path.
        set_by: the `--set` that gave a value instead of the file, by path.
    """

    source: str
    data: Any
    lines: dict[Path, int] = field(default_factory=dict)
    set_by: dict[Path, str] = field(default_factory=dict)

    def fault(self, path: Path, message: str) -> Fault:
        """A fault at `path`, with the line of the nearest place that has one."""
        for length in range(len(path), -1, -1):
            place = path[:length]
            if place in self.set_by:
                return Fault(f"--set {self.set_by[place]}", None, dotted(path), message)
            if place in self.lines:
                return Fault(self.source, self.lines[place], dotted(path), message)
        return Fault(self.source, None, dotted(path), message)


def parse_yaml(raw: bytes, source: str) -> Document:
    """The one document in `raw`, or RecipeFaults."""
    if len(raw) > MAX_BYTES:
        _refuse(source, None, f"has more than {MAX_BYTES} bytes, the most such a file may have.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad_line = raw[: error.start].count(b"\n") + 1
        _refuse(source, bad_line, f"is not UTF-8 at byte {error.start}. Save it as UTF-8 text.")
    builder = _Builder(source)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.reader.ReaderError as error:
        bad_line = text[: error.position].count("\n") + 1
        code = int(error.character)
        _refuse(source, bad_line, f"has the character U+{code:04X}, which YAML forbids. Remove it.")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(part for part in (error.context, error.problem) if part)
        hint = " Quote text that holds ': '." if "mapping values" in words else ""
        line = None if mark is None else mark.line + 1
        _refuse(source, line, f"is not valid YAML: {words}.{hint}")
    return builder.document()


def parse_value(text: str) -> Any:
    """The value behind `--set name=TEXT`: a scalar or a flow list, as in a file."""
    return parse_yaml(text.encode("utf-8", "surrogateescape"), "value").data


def read_scalar(text: str) -> Any:
    """A plain scalar by the YAML 1.2 core schema, without octal and hexadecimal numbers."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    return text


_NO_KEY = object()


@dataclass
class _Open:
    """A mapping or list that is not closed yet; `key` waits for its value."""

    value: dict[str, Any] | list[Any]
    path: Path
    key: Any = _NO_KEY
    key_line: int = 0


@dataclass
class _Builder:
    """Builds plain data from the events of the YAML parser; recursion and expansion are absent."""

    source: str
    lines: dict[Path, int] = field(default_factory=dict)
    stack: list[_Open] = field(default_factory=list)
    root: Any = None
    num_documents: int = 0
    faults: list[Fault] = field(default_factory=list)

    def take(self, event: yaml.Event) -> None:
        """Consume one event."""
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.DocumentStartEvent):
            self.num_documents += 1
            if self.num_documents > 1:
                _refuse(self.source, line, "holds a second YAML document; one per file.")
        elif isinstance(event, yaml.NodeEvent):
            self._check_node(event, line)
            if isinstance(event, yaml.ScalarEvent):
                self._add(read_scalar(event.value) if event.style is None else event.value, line)
            else:
                empty: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
                path = self._add(empty, line)
                self.stack.append(_Open(empty, path))
        elif isinstance(event, yaml.CollectionEndEvent):
            self.stack.pop()

    def document(self) -> Document:
        """What was built; duplicate keys are told now, all at once."""
        if self.faults:
            raise RecipeFaults(self.faults)
        return Document(self.source, self.root, self.lines)

    def _check_node(self, event: yaml.NodeEvent, line: int) -> None:
        words, tag = "", getattr(event, "tag", None)
        if event.anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            words = (
                f"YAML anchors and aliases ({show(sign + event.anchor)}) are not allowed."
                " Recipes have variables: and ${name} instead."
            )
        elif tag is not None:
            words = (
                f"the YAML tag {show(tag)} is not allowed: such files are plain data. Remove it."
            )
        elif len(self.stack) >= MAX_DEPTH:
            words = f"is nested deeper than {MAX_DEPTH} levels."
        elif len(self.lines) >= MAX_VALUES:
            words = f"has more than {MAX_VALUES} values."
        if words:
            _refuse(self.source, line, words)

    def _add(self, value: Any, line: int) -> Path:
        """Put a value where the next one belongs and return its path."""
        if not self.stack:
            self.root = value
            self.lines[()] = line
            return ()
        top = self.stack[-1]
        if isinstance(top.value, list):
            path = (*top.path, len(top.value))
            top.value.append(value)
            self.lines[path] = line
            return path
        if top.key is _NO_KEY:
            if isinstance(value, dict | list):
                _refuse(self.source, line, f"a key must be a word, got {show(value)}.")
            # `null:` or `1:` as a key: the schema then says that no such key is known.
            top.key, top.key_line = str(value), line
            return top.path
        path = (*top.path, top.key)
        if top.key in top.value:
            words = f"the key stands here twice, first in line {self.lines[path]}. Remove one."
            self.faults.append(Fault(self.source, top.key_line, dotted(path), words))
        else:
            self.lines[path] = top.key_line
        top.value[top.key] = value
        top.key = _NO_KEY
        return path


def _refuse(source: str, line: int | None, message: str) -> NoReturn:
    raise RecipeFaults([Fault(source, line, "", message)])
