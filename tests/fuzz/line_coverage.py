# SPDX-License-Identifier: Apache-2.0
"""Which lines of a reader's functions ran: a tracer that looks at these files only.

A function whose lines were all seen is not traced any more, so that long runs get faster.
"""

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class LineCoverage:
    """Lines of functions of some files that ran while `on()`.

    Args:
        functions: source files, and the functions of each that count; None counts all.
    """

    def __init__(self, functions: dict[Path, set[str] | None]) -> None:
        self.lines: dict[str, set[int]] = {}
        for path, names in functions.items():
            code = compile(path.read_text(), str(path), "exec")
            self.lines[str(path)] = _function_lines(code, names)
        self.seen: dict[str, set[int]] = {name: set() for name in self.lines}
        self._left: dict[int, set[int] | None] = {}
        self._kept: list[CodeType] = []

    def on(self) -> None:
        """Start."""
        sys.settrace(self._call)

    @staticmethod
    def off() -> None:
        """Stop."""
        sys.settrace(None)

    def add(self, seen: dict[str, list[int]]) -> None:
        """What another process saw."""
        for name, lines in seen.items():
            self.seen[name].update(lines)

    @property
    def percent(self) -> float:
        """Of all lines of functions of all files."""
        total = sum(map(len, self.lines.values()))
        hit = sum(len(self.lines[name] & seen) for name, seen in self.seen.items())
        return 100 * hit / max(total, 1)

    def missed(self) -> dict[str, list[int]]:
        """Lines that did not run, by file."""
        return {Path(name).name: sorted(self.lines[name] - self.seen[name]) for name in self.lines}

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        left = self._left.get(id(code), False)
        if left is False:
            left = self._first_time(code)
        if not left:
            return None
        self.seen[code.co_filename].add(frame.f_lineno)
        return self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            code = frame.f_code
            self.seen[code.co_filename].add(frame.f_lineno)
            left = self._left[id(code)]
            if left is not None:
                left.discard(frame.f_lineno)
        return self._line

    def _first_time(self, code: CodeType) -> set[int] | None:
        self._kept.append(code)  # so that no other code gets its id
        known = code.co_filename in self.lines
        left = _own_lines(code) if known else None
        self._left[id(code)] = left
        return left


def _own_lines(code: CodeType) -> set[int]:
    lines = {line for _, _, line in code.co_lines() if line is not None}
    return lines - {code.co_firstlineno}


def _function_lines(code: CodeType, names: set[str] | None) -> set[int]:
    """Lines inside of functions; those of modules and classes run when they are imported."""
    found: set[int] = set()
    for part in code.co_consts:
        if isinstance(part, CodeType):
            is_function = part.co_flags & 2  # it has fast locals; a class body has none
            counts = names is None or part.co_name in names
            if is_function and counts:
                found |= _own_lines(part)
            found |= _function_lines(part, None if is_function and counts else names)
    return found
