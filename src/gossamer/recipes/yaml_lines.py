# SPDX-License-Identifier: Apache-2.0
"""YAML as untrusted input, with the line of every value.

Only what a recipe needs: mappings, lists, text, numbers, true, false, null. Plain scalars are
read as in YAML 1.2, because in YAML 1.1 `2:4` is the number 124 and `no` is false. Anchors,
aliases, tags, duplicate keys and second documents are refused; nothing names code.
"""

import itertools
import math
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from gossamer.errors import InputError
from gossamer.named_files import open_named
from gossamer.recipes.faults import Fault, Path, RecipeFaults, dotted
from gossamer.recipes.phrases import plain, show

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_VALUES",
    "Document",
    "parse_value",
    "parse_yaml",
    "read_file",
    "read_scalar",
]

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


def read_file(path: pathlib.Path, error: type[InputError]) -> bytes | None:
    """What a file that the user named holds, as far as it may be long; None if there is none.

    Raises:
        error: it cannot be read.
    """
    try:
        if not path.exists():
            return None
        if not path.is_file():
            raise ValueError("it is not a file; expected YAML")
        with open_named(path, error) as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else fault
        raise error(f"{plain(str(path))}: cannot be read ({reason}).") from fault


def parse_yaml(raw: bytes, source: str) -> Document:
    """The one document in `raw`, or RecipeFaults."""
    if len(raw) > MAX_BYTES:
        _refuse(source, None, f"has more than {MAX_BYTES} bytes, the most such a file may have.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad_line = raw[: error.start].count(b"\n") + 1
        _refuse(source, bad_line, f"is not UTF-8 at byte {error.start}. Save it as UTF-8 text.")
    try:
        return _Reader(source, yaml.parse(text, Loader=yaml.SafeLoader)).document()
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


@dataclass
class _Reader:
    """Builds plain data from the events of the YAML parser; nothing is expanded."""

    source: str
    events: Iterator[Any]
    lines: dict[Path, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def document(self) -> Document:
        """The one document; duplicate keys are told now, all at once."""
        root: Any = None
        num_documents = 0
        for event in self.events:
            num_documents += isinstance(event, yaml.DocumentStartEvent)
            if num_documents > 1:
                _refuse(self.source, _line(event), "holds a second YAML document; one per file.")
            if isinstance(event, yaml.NodeEvent):
                root = self._value(event, (), _line(event))
        if self.faults:
            raise RecipeFaults(self.faults)
        return Document(self.source, root, self.lines)

    def _value(self, event: Any, path: Path, line: int, depth: int = 0) -> Any:
        """What begins with `event`, at `path` inside so many mappings and lists."""
        self._check(event, depth)
        self.lines[path] = line
        if isinstance(event, yaml.ScalarEvent):
            return read_scalar(event.value) if event.style is None else event.value
        inside = itertools.takewhile(
            lambda event: not isinstance(event, yaml.CollectionEndEvent), self.events
        )
        if isinstance(event, yaml.SequenceStartEvent):
            return [
                self._value(item, (*path, number), _line(item), depth + 1)
                for number, item in enumerate(inside)
            ]
        found: dict[str, Any] = {}
        for key_event in inside:
            self._check(key_event, depth + 1)
            line = _line(key_event)
            if not isinstance(key_event, yaml.ScalarEvent):
                empty: Any = {} if isinstance(key_event, yaml.MappingStartEvent) else []
                _refuse(self.source, line, f"a key must be a word, got {show(empty)}.")
            # `null:` or `1:` as a key: the schema then says that no such key is known.
            key = str(read_scalar(key_event.value) if key_event.style is None else key_event.value)
            place = (*path, key)
            if key in found:
                first = self.lines[place]
                words = f"the key stands here twice, first in line {first}. Remove one."
                self.faults.append(Fault(self.source, line, dotted(place), words))
                line = first
            found[key] = self._value(next(self.events), place, line, depth + 1)
        return found

    def _check(self, event: Any, depth: int) -> None:
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
        elif depth >= MAX_DEPTH:
            words = f"is nested deeper than {MAX_DEPTH} levels."
        elif len(self.lines) >= MAX_VALUES:
            words = f"has more than {MAX_VALUES} values."
        if words:
            _refuse(self.source, _line(event), words)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _refuse(source: str, line: int | None, message: str) -> NoReturn:
    raise RecipeFaults([Fault(source, line, "", message)])
