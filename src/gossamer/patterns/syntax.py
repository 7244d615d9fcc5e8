# SPDX-License-Identifier: Apache-2.0
"""The table of built-in patterns: their texts and their limits, without torch.

Recipes are checked with `read_builtin` alone, before anything heavy is imported; the pattern
classes read the same rows of `FORMS`, so a text means the same to both. `form_of` is the name that
a text is looked up by.
"""

import re
from collections.abc import Callable, Mapping
from math import comb
from typing import Final, NamedTuple

from gossamer.errors import PatternError

__all__ = [
    "FORMS",
    "LEGAL_FORMS",
    "NUM_KEPT",
    "NUM_SHARED",
    "PatternText",
    "form_of",
    "read_builtin",
]

MAX_NM_GROUP = 32
NUM_SHARED = 4
NUM_KEPT = 2
# Positions of the shared columns are stored in one byte.
MAX_VNM_GROUP = 256
MAX_NMG_GROUP = 32
# More row patterns make tiles of thousands of columns that no kernel keeps in its cache.
MAX_ROW_PATTERNS = 256
# Columns of a tile are stored in 16 signed bits.
MAX_TILE_COLUMNS = (1 << 15) - 1

LEGAL_FORMS = (
    "'unstructured', 'N:M' such as '2:4' (N kept of M), 'V:N:M' such as '64:2:8',"
    " 'nmg:n:m:g' such as 'nmg:2:4:16', 'block:RxC' such as 'block:4x4'"
)


class PatternText(NamedTuple):
    """What a built-in pattern's text says.

    Attributes:
        text: its canonical form.
        fixed_density: the kept fraction where the pattern fixes it.
    """

    text: str
    fixed_density: float | None


class PatternForm(NamedTuple):
    """How one built-in pattern is written: a row of `FORMS`.

    Attributes:
        syntax: a regular expression with a group per number.
        expected: what a malformed text should have been.
        text: the canonical text, to be filled with the numbers.
        check: raises PatternError unless these numbers are legal.
        density: the kept fraction that the numbers fix; None where any is legal.
        max_group: the largest M, where a pattern has groups.
    """

    syntax: str
    expected: str
    text: str
    check: Callable[..., None] = lambda: None
    density: Callable[..., float | None] = lambda *numbers: None
    max_group: int = 0

    def read(self, text: str) -> tuple[int, ...]:
        """The numbers in a text of this form, checked."""
        match = re.fullmatch(self.syntax, text)
        if match is None:
            raise PatternError(f"pattern {text!r}: expected {self.expected}")
        numbers = tuple(int(number) for number in match.groups())
        self.check(*numbers)
        return numbers


def form_of(text: str) -> str:
    """The name a pattern is registered under: texts of numbers are N:M or V:N:M by their colons."""
    name = text.split(":", 1)[0]
    if name[:1].isdigit():
        return "V:N:M" if text.count(":") == 2 else "N:M"
    return name


def read_builtin(text: str) -> PatternText | None:
    """What `text` says; None if no built-in pattern has its name; PatternError if malformed."""
    form = FORMS.get(form_of(text))
    if form is None:
        return None
    numbers = form.read(text)
    return PatternText(form.text.format(*numbers), form.density(*numbers))


def _check_nm(num_kept: int, group: int) -> None:
    if not 1 <= num_kept <= group <= MAX_NM_GROUP:
        raise PatternError(
            f"pattern {num_kept}:{group}: N:M keeps N of M with 1 <= N <= M <= {MAX_NM_GROUP},"
            f" got N={num_kept}, M={group}. Write '2:4' to keep 2 of 4."
        )


def _check_vnm(block_rows: int, group: int) -> None:
    if block_rows < 1 or not NUM_SHARED <= group <= MAX_VNM_GROUP:
        raise PatternError(
            f"pattern {block_rows}:{NUM_KEPT}:{group}: V:2:M needs V >= 1 and"
            f" {NUM_SHARED} <= M <= {MAX_VNM_GROUP}, got V={block_rows}, M={group}."
            " Write '64:2:8' for 64 rows, 2 of 8."
        )


def _check_nmg(num_kept: int, group: int, repeats: int) -> None:
    where = f"pattern nmg:{num_kept}:{group}:{repeats}"
    legal = 1 <= num_kept <= group <= MAX_NMG_GROUP and repeats >= 1
    if not legal or comb(group, num_kept) > MAX_ROW_PATTERNS:
        raise PatternError(
            f"{where}: nmg:n:m:g needs 1 <= n <= m <= {MAX_NMG_GROUP}, g >= 1 and at most"
            f" {MAX_ROW_PATTERNS} ways to keep n of m, such as 'nmg:2:4:16'."
        )
    tile_columns = comb(group, num_kept) * repeats
    if tile_columns > MAX_TILE_COLUMNS:
        raise PatternError(
            f"{where}: a tile would have C(m, n) * g = {tile_columns} columns, more than"
            f" {MAX_TILE_COLUMNS}. Take a smaller g."
        )


def _check_block(rows: int, columns: int) -> None:
    if rows < 1 or columns < 1:
        raise PatternError(
            f"pattern block:{rows}x{columns}: block:RxC needs R >= 1 and C >= 1, such as"
            " 'block:4x4'."
        )


_NUMBER = "([0-9]{1,6})"

FORMS: Final[Mapping[str, PatternForm]] = {
    "unstructured": PatternForm(
        syntax="unstructured",
        expected="'unstructured' and nothing else.",
        text="unstructured",
    ),
    "N:M": PatternForm(
        syntax=f"{_NUMBER}:{_NUMBER}",
        expected=f"two numbers N:M with 1 <= N <= M <= {MAX_NM_GROUP}, such as '2:4' (2 kept of 4),"
        " or three V:N:M, such as '64:2:8'.",
        text="{}:{}",
        check=_check_nm,
        density=lambda num_kept, group: num_kept / group,
        max_group=MAX_NM_GROUP,
    ),
    "V:N:M": PatternForm(
        syntax=f"{_NUMBER}:0{{0,5}}{NUM_KEPT}:{_NUMBER}",
        expected=f"V:N:M with V >= 1, N = 2 and {NUM_SHARED} <= M <= {MAX_VNM_GROUP}, such as"
        " '64:2:8': 64 rows share 4 of 8 columns, each keeps 2; or N:M, such as '2:4'.",
        text=f"{{}}:{NUM_KEPT}:{{}}",
        check=_check_vnm,
        density=lambda block_rows, group: NUM_KEPT / group,
        max_group=MAX_VNM_GROUP,
    ),
    "nmg": PatternForm(
        syntax=f"nmg:{_NUMBER}:{_NUMBER}:{_NUMBER}",
        expected="nmg:n:m:g with 1 <= n <= m and g >= 1, such as 'nmg:2:4:16': 2 of 4 outputs kept,"
        " each choice in 16 columns of a tile.",
        text="nmg:{}:{}:{}",
        check=_check_nmg,
        density=lambda num_kept, group, repeats: num_kept / group,
        max_group=MAX_NMG_GROUP,
    ),
    "block": PatternForm(
        syntax=f"block:{_NUMBER}x{_NUMBER}",
        expected="block:RxC with R >= 1 rows (outputs) and C >= 1 columns (inputs), such as"
        " 'block:4x4'.",
        text="block:{}x{}",
        check=_check_block,
    ),
}
