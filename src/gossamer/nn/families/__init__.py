# SPDX-License-Identifier: Apache-2.0
"""Model families: everything that this package knows about BERT, Llama, zoo.GPT and the others.

One file per family holds its row, a `Family`. Start with `family.py`, which lists the questions,
and `llama.py`, which answers most of them. Whoever needs to know where a family keeps something
asks here: `answers("classes")` for all families, `block_of(module)` for one block, `family_of`
for a whole model. `BlockParts`, `Chain`, `EncoderFacts` and `GrowthFacts` are such answers; a
family without one says why in a text, which errors repeat (`why_not`). `text` has what users of
text models ask. A new family is one new file and its line in `table.py`, or in `encoders/`.
"""

from gossamer.nn.families.family import BlockParts, Chain, EncoderFacts, GrowthFacts
from gossamer.nn.families.table import answers, block_of, family_of, why_not

__all__ = [
    "BlockParts",
    "Chain",
    "EncoderFacts",
    "GrowthFacts",
    "answers",
    "block_of",
    "family_of",
    "why_not",
]
