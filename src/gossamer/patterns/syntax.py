# SPDX-License-Identifier: Apache-2.0
"""The texts of the built-in patterns and their limits, without torch.

Recipes are checked with this file alone, before anything heavy is imported; the pattern classes
use the same functions, so a text means the same to both.
"""

import re
from collections.abc import Callable
from math import comb
from typing import NamedTuple

from gossamer.errors import PatternError

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


def form_of(text: str) -> str:
    """The name a pattern is registered under: texts of numbers are N:M or V:N:M by their colons."""
    name = text.split(":", 1)[0]
    if name[:1].isdigit():
        return "V:N:M" if text.count(":") == 2 else "N:M"
    return name


def read_builtin(text: str) -> PatternText | None:
    """What `text` says; None if no built-in pattern has its name; PatternError if malformed."""
    read = _READERS.get(form_of(text))
    return None if read is None else read(text)


def read_unstructured(text: str) -> None:
    """Accept `unstructured` and nothing else."""
    if text != "unstructured":
        raise PatternError(f"pattern {text!r}: expected 'unstructured' and nothing else.")


def read_nm(text: str) -> tuple[int, int]:
    """N and M of `N:M`."""
    match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", text)
    if match is None:
        raise PatternError(
            f"pattern {text!r}: expected two numbers N:M with 1 <= N <= M <= {MAX_NM_GROUP},"
            " such as '2:4' (2 kept of 4), or three V:N:M, such as '64:2:8'."
        )
    return check_nm(int(match[1]), int(match[2]))


def check_nm(num_kept: int, group: int) -> tuple[int, int]:
    """Both, if N:M can be had."""
    if not 1 <= num_kept <= group <= MAX_NM_GROUP:
        raise PatternError(
            f"pattern {num_kept}:{group}: N:M keeps N of M with 1 <= N <= M <= {MAX_NM_GROUP},"
            f" got N={num_kept}, M={group}. Write '2:4' to keep 2 of 4."
        )
    return num_kept, group


def read_vnm(text: str) -> tuple[int, int]:
    """V and M of `V:N:M`; N must be 2."""
    match = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6}):([0-9]{1,6})", text)
    if match is None or int(match[2]) != NUM_KEPT:
        raise PatternError(
            f"pattern {text!r}: expected V:N:M with V >= 1, N = 2 and {NUM_SHARED} <= M <="
            f" {MAX_VNM_GROUP}, such as '64:2:8': 64 rows share 4 of 8 columns, each keeps 2;"
            " or N:M, such as '2:4'."
        )
    return check_vnm(int(match[1]), int(match[3]))


def check_vnm(block_rows: int, group: int) -> tuple[int, int]:
    """Both, if V:2:M can be had."""
    if block_rows < 1 or not NUM_SHARED <= group <= MAX_VNM_GROUP:
        raise PatternError(
            f"pattern {block_rows}:{NUM_KEPT}:{group}: V:2:M needs V >= 1 and"
            f" {NUM_SHARED} <= M <= {MAX_VNM_GROUP}, got V={block_rows}, M={group}."
            " Write '64:2:8' for 64 rows, 2 of 8."
        )
    return block_rows, group


def read_nmg(text: str) -> tuple[int, int, int]:
    """The numbers n, m and g of `nmg:n:m:g`."""
    match = re.fullmatch(r"nmg:([0-9]{1,6}):([0-9]{1,6}):([0-9]{1,6})", text)
    if match is None:
        raise PatternError(
            f"pattern {text!r}: expected nmg:n:m:g with 1 <= n <= m and g >= 1, such as"
            " 'nmg:2:4:16': 2 of 4 outputs kept, each choice in 16 columns of a tile."
        )
    return check_nmg(int(match[1]), int(match[2]), int(match[3]))


def check_nmg(num_kept: int, group: int, repeats: int) -> tuple[int, int, int]:
    """All three, if nmg:n:m:g can be had."""
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
    return num_kept, group, repeats


def read_block(text: str) -> tuple[int, int]:
    """R and C of `block:RxC`."""
    match = re.fullmatch(r"block:([0-9]{1,6})x([0-9]{1,6})", text)
    if match is None:
        raise PatternError(
            f"pattern {text!r}: expected block:RxC with R >= 1 rows (outputs) and C >= 1"
            " columns (inputs), such as 'block:4x4'."
        )
    return check_block(int(match[1]), int(match[2]))


def check_block(rows: int, columns: int) -> tuple[int, int]:
    """Both, if such blocks can be had."""
    if rows < 1 or columns < 1:
        raise PatternError(
            f"pattern block:{rows}x{columns}: block:RxC needs R >= 1 and C >= 1, such as"
            " 'block:4x4'."
        )
    return rows, columns


def _unstructured(text: str) -> PatternText:
    read_unstructured(text)
    return PatternText(text, None)


def _nm(text: str) -> PatternText:
    num_kept, group = read_nm(text)
    return PatternText(f"{num_kept}:{group}", num_kept / group)


def _vnm(text: str) -> PatternText:
    block_rows, group = read_vnm(text)
    return PatternText(f"{block_rows}:{NUM_KEPT}:{group}", NUM_KEPT / group)


def _nmg(text: str) -> PatternText:
    num_kept, group, repeats = read_nmg(text)
    return PatternText(f"nmg:{num_kept}:{group}:{repeats}", num_kept / group)


def _block(text: str) -> PatternText:
    rows, columns = read_block(text)
    return PatternText(f"block:{rows}x{columns}", None)


_READERS: dict[str, Callable[[str], PatternText]] = {
    "unstructured": _unstructured,
    "N:M": _nm,
    "V:N:M": _vnm,
    "nmg": _nmg,
    "block": _block,
}
