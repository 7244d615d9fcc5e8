# SPDX-License-Identifier: Apache-2.0
"""From text to pattern of attention, and from a pattern to its list of blocks.

window:512+global:64                       terms are united by + or |
bigbird:block=64,window=3,global=2,random=3
window:256; strided:128                    heads in two groups, one pattern each
"""

import dataclasses
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossamer.errors import PatternError
from gossamer.lazy_door import LateModule
from gossamer.patterns.attention.block_list import BLOCK, WHOLE, Bits, BlockList, Ints, check_size
from gossamer.patterns.attention.nearest import nearest
from gossamer.patterns.attention.terms import TERMS, AttentionTerm, BigBirdTerm, Span, WindowTerm

if TYPE_CHECKING:
    import numpy as np
else:  # see block_list
    np = LateModule("numpy")

LEGAL_ATTENTION = (
    "'full', 'window:512', 'window:512+global:64', 'sinks:4+window:1024', 'strided:128',"
    " 'fixed:128,c=8', 'bigbird:block=64,window=3,global=2,random=3'"
)
_WHERE = "attention pattern"


@dataclass(frozen=True)
class AttentionPattern:
    """Which pairs attend. Equal when the text is; `str()` gives the canonical text.

    Attributes:
        groups: the terms of each group of heads; a pair attends if any of them says so.
    """

    groups: tuple[tuple[AttentionTerm, ...], ...]

    def __str__(self) -> str:
        return "; ".join("+".join(map(str, terms)) for terms in self.groups)

    @property
    def differs_by_head(self) -> bool:
        """Whether heads attend to different pairs: groups of heads, or pairs drawn for each."""
        drawn = any(isinstance(t, BigBirdTerm) and t.random for terms in self.groups for t in terms)
        return drawn or len(self.groups) > 1

    @property
    def as_window(self) -> int | None:
        """The tokens of a pattern that is one window and nothing else; None for others."""
        one = self.groups[0][0]
        alone = len(self.groups) == 1 == len(self.groups[0])
        is_window = alone and isinstance(one, WindowTerm) and one.dilation == 1
        return one.length if is_window and isinstance(one, WindowTerm) else None

    def group_of(self, head: int, heads: int) -> tuple[AttentionTerm, ...]:
        """The terms of a head."""
        if heads % len(self.groups):
            raise PatternError(
                f"{_WHERE} '{self}': {len(self.groups)} patterns for {heads} heads; expected a"
                " number that divides the heads, as each is for as many of them."
            )
        return self.groups[head * len(self.groups) // heads]

    def blocks(
        self,
        queries: int,
        keys: int | None = None,
        *,
        heads: int = 1,
        causal: bool = False,
        offset: int | None = None,
    ) -> BlockList:
        """The blocks that heads compute, in time and memory of their number.

        Args:
            queries: how many there are.
            keys: how many there are; None = as many as queries.
            heads: of queries.
            causal: a query attends to keys up to its own position only.
            offset: the position of the first query; None: the last query stands at the last key.
        """
        keys = queries if keys is None else keys
        check_size(queries, "queries")
        check_size(keys, "keys")
        return _blocks(
            self, queries, keys, heads, causal, keys - queries if offset is None else offset
        )

    def attends(self, i: Ints, j: Ints, grid: Span, heads: int) -> Bits:
        """Whether queries at positions i attend to keys at j; what a pattern means."""
        found = np.zeros(np.broadcast_shapes(i.shape, j.shape), dtype=bool)
        for term in self.group_of(grid.head, heads):
            found |= term.attends(i, j, grid)
        return found & (j <= i) if grid.causal else found


@functools.lru_cache(maxsize=64)
def _blocks(
    pattern: AttentionPattern, queries: int, keys: int, heads: int, causal: bool, offset: int
) -> BlockList:
    kinds: dict[object, int] = {}
    of_head, lists, masks = [], [], Masks()
    for head in range(heads):
        terms = pattern.group_of(head, heads)
        varies = any(isinstance(term, BigBirdTerm) and term.random for term in terms)
        kind = (terms, head) if varies else terms
        if kind not in kinds:
            kinds[kind] = len(kinds)
            grid = Span(queries, keys, offset, causal, head)
            lists.append(_list_of(pattern, grid, heads, masks))
        of_head.append(kinds[kind])
    return BlockList.of(queries, keys, of_head, lists, masks.array())


class Masks:
    """Masks of 64 x 64, each once."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._masks: list[Bits] = []

    def add(self, mask: Bits) -> int:
        """The number of a mask."""
        key = np.packbits(mask).tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._masks)
            self._masks.append(mask)
        return self._numbers[key]

    def array(self) -> Bits:
        """All of them, by number."""
        empty = np.zeros((0, BLOCK, BLOCK), dtype=bool)
        return np.stack(self._masks) if self._masks else empty


_EMPTY = -2


def _list_of(
    pattern: AttentionPattern, grid: Span, heads: int, masks: Masks
) -> tuple[Ints, Ints, Ints]:
    """Rows, columns and masks of the blocks of one head."""
    terms = pattern.group_of(grid.head, heads)
    columns = max(len(grid.first_keys), 1)
    codes = [row * columns + column for term in terms for row, column in term.blocks(grid)]
    row, column = np.divmod(np.unique(np.concatenate(codes).astype(np.int64)), columns)
    first_query, first_key = row * BLOCK + grid.offset, column * BLOCK
    if grid.causal:
        reached = first_query + BLOCK - 1 >= first_key
        row, column = row[reached], column[reached]
        first_query, first_key = first_query[reached], first_key[reached]
    signature = [
        number for term in terms for number in term.signature(first_query, first_key, grid)
    ]
    if grid.causal:
        signature.append(np.minimum(first_query - first_key, BLOCK))
    if not len(row):
        return row, column, np.zeros(0, dtype=np.int64)
    if not signature:
        signature = [np.zeros(len(row), dtype=np.int64)]
    example, inverse = _distinct(signature)
    inside = np.arange(BLOCK, dtype=np.int64)
    numbers = np.empty(len(example), dtype=np.int64)
    for place, block in enumerate(example):
        i, j = first_query[block] + inside[:, None], first_key[block] + inside
        mask = pattern.attends(i, j, grid, heads)
        numbers[place] = WHOLE if mask.all() else masks.add(mask) if mask.any() else _EMPTY
    number = numbers[inverse]
    kept = number != _EMPTY
    return row[kept], column[kept], number[kept]


def _distinct(signature: list[Ints]) -> tuple[Ints, Ints]:
    """A block for each distinct signature, and which of them each block has."""
    codes = np.zeros(len(signature[0]), dtype=np.int64)
    for number in signature:
        values, places = np.unique(number, return_inverse=True)
        _, codes = np.unique(codes * len(values) + places, return_inverse=True)
    _, example, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return example, inverse


def parse_attention(
    text: "str | AttentionPattern | list[str] | tuple[str, ...]",
) -> AttentionPattern:
    """The pattern that `text` names; several texts are those of as many groups of heads."""
    if isinstance(text, AttentionPattern):
        return text
    if isinstance(text, list | tuple) and text and all(isinstance(one, str) for one in text):
        text = "; ".join(text)
    if not isinstance(text, str):
        raise PatternError(
            f"{_WHERE}: expected text, got {type(text).__name__}. Legal: {LEGAL_ATTENTION}."
        )
    return _parsed(text)


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> AttentionPattern:
    groups, start = [], 0
    for part in text.split(";"):
        terms, at = [], start
        for piece in re.split(r"[+|]", part):
            terms.append(_term(text, piece, at))
            at += len(piece) + 1
        groups.append(tuple(terms))
        start += len(part) + 1
    return AttentionPattern(tuple(groups))


def _fault(text: str, place: int, what: str) -> PatternError:
    return PatternError(
        f"{_WHERE} {text!r}, position {place + 1}: {what} Legal are {LEGAL_ATTENTION}."
    )


def _term(text: str, piece: str, start: int) -> AttentionTerm:
    start += len(piece) - len(piece.lstrip())
    piece = piece.strip()
    if not piece:
        raise _fault(text, start, "a term is missing.")
    name, _, rest = piece.partition(":")
    if name not in TERMS:
        raise _fault(text, start, f"no pattern is called '{name}'; {nearest(name, list(TERMS))}")
    term = TERMS[name]
    declared = dataclasses.fields(term)  # type: ignore[arg-type]  # every term is a dataclass
    fields = [field.name.rstrip("_") for field in declared]
    given: dict[str, int] = {}
    at = start + len(name) + 1
    for number, argument in enumerate(rest.split(",") if rest else []):
        key, equals, value = argument.partition("=")
        if not equals and number == 0 and fields:
            key, value = fields[0], key
        key, value = key.strip(), value.strip()
        if key not in fields:
            takes = nearest(key, fields) if fields else f"'{name}' takes no numbers."
            raise _fault(text, at, f"'{name}' has no '{key}'; {takes}")
        if not re.fullmatch("[0-9]{1,9}", value):
            raise _fault(text, at, f"'{key}' of '{name}' must be a whole number, got '{value}'.")
        if key in given:
            raise _fault(text, at, f"'{key}' of '{name}' is given twice.")
        given[key] = int(value)
        at += len(argument) + 1
    needed = [field.name for field in declared if field.default is dataclasses.MISSING]
    for field in needed:
        if field not in given:
            raise _fault(text, start, f"'{name}' needs its {field}, such as '{name}:128'.")
    made = term(**{"global_" if key == "global" else key: value for key, value in given.items()})
    try:
        made.check()
    except PatternError as error:
        raise _fault(text, start, str(error)) from None
    return made
