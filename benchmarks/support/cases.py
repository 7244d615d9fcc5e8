# SPDX-License-Identifier: Apache-2.0
"""What is measured: shapes, token counts, patterns by sparsity, and the goals beside them."""

from dataclasses import dataclass

SHAPES = ((768, 768), (3072, 768), (768, 3072), (1536, 576))
TOKENS = (128, 1024)

UNSTRUCTURED = "unstructured"
NM = "N:M"
SHARED = "n:m:g, V:N:M"
BLOCK = "block"
INT8 = "int8 arithmetic"
PEER = "peer"

# In these groups the best pattern counts; in the others each pattern must reach the goal.
BEST_COUNTS = (SHARED, BLOCK, INT8)
CEILING_GOAL = 0.85

_BLOCKS = ("block:16x1", "block:4x4", "block:16x16")


@dataclass(frozen=True)
class Column:
    """Patterns of about the same sparsity, measured in one race.

    Attributes:
        title: the sparsity as people write it.
        sparsity: of the patterns without a density of their own.
        patterns: texts by group.
        goals: speed-up over torch dense fp32 by group.
    """

    title: str
    sparsity: float
    patterns: dict[str, tuple[str, ...]]
    goals: dict[str, float]


# V:N:M and n:m:g must divide every shape above; in the last column that gives 95.8 %.
COLUMNS = (
    Column(
        "50 %",
        0.5,
        {
            UNSTRUCTURED: ("unstructured",),
            NM: ("8:16", "4:8"),
            SHARED: ("nmg:2:4:16", "64:2:4"),
            BLOCK: _BLOCKS,
        },
        {UNSTRUCTURED: 1.65, NM: 1.6, SHARED: 2.0, BLOCK: 2.0, INT8: 5.0},
    ),
    Column("67 %", 2 / 3, {NM: ("2:6",)}, {NM: 2.3}),
    Column(
        "75-80 %",
        0.8,
        {
            UNSTRUCTURED: ("unstructured",),
            NM: ("4:16", "2:8"),
            SHARED: ("nmg:1:4:16", "64:2:8"),
            BLOCK: _BLOCKS,
        },
        {UNSTRUCTURED: 3.5, NM: 3.3, SHARED: 4.2, BLOCK: 4.3, INT8: 8.0},
    ),
    Column(
        "87.5-90 %",
        0.9,
        {
            UNSTRUCTURED: ("unstructured",),
            NM: ("2:16", "1:8"),
            SHARED: ("nmg:1:8:8", "64:2:16"),
            BLOCK: _BLOCKS,
        },
        {UNSTRUCTURED: 6.0, NM: 6.2, SHARED: 8.0, BLOCK: 8.5, INT8: 12.0},
    ),
    Column(
        "95 %",
        0.95,
        {
            UNSTRUCTURED: ("unstructured",),
            SHARED: ("nmg:1:24:8", "64:2:48"),
            BLOCK: _BLOCKS,
        },
        {UNSTRUCTURED: 9.0, SHARED: 14.0, BLOCK: 15.0, INT8: 18.0},
    ),
)


@dataclass(frozen=True)
class Claim:
    """A goal against a peer: `group` at least `goal` times as fast in one column."""

    group: str
    column: str
    peer: str
    goal: float


CLAIMS = (
    *(
        Claim(UNSTRUCTURED, column, "DeepSparse 1.8", 1.3)
        for column in ("75-80 %", "87.5-90 %", "95 %")
    ),
    Claim(UNSTRUCTURED, "87.5-90 %", "torch dense bf16", 2.5),
    Claim(INT8, "50 %", "torch dense int8", 1.3),
    Claim(INT8, "75-80 %", "torch dense int8", 2.5),
    Claim(INT8, "87.5-90 %", "torch dense int8", 4.0),
)
