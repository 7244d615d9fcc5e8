# SPDX-License-Identifier: Apache-2.0
"""Generated English sentences: what calibrates packaged models where there is no data."""

import random

_WHO = (
    "a nurse", "the old captain", "my neighbour", "a group of students", "the committee",
    "an engineer from Oslo", "the youngest sister", "a street musician", "the minister",
    "their football coach", "a retired judge", "the night porter",
)  # fmt: skip
_DOES = (
    "repaired", "wrote about", "photographed", "sold", "painted", "forgot", "inspected",
    "described", "bought", "criticised", "borrowed", "rebuilt",
)  # fmt: skip
_WHAT = (
    "a broken bicycle", "the annual budget", "an ancient map of the coast", "two loaves of bread",
    "the railway station", "a poem in Latin", "the engine of a small boat", "a field of barley",
    "the results of the election", "a wooden bridge", "the museum's oldest clock",
    "a letter to the editor",
)  # fmt: skip
_WHEN = (
    "before sunrise", "in the spring of 1987", "while it was raining", "last Tuesday",
    "after a long discussion", "without telling anyone", "during the storm", "for the third time",
    "when the market closed", "on the way home",
)  # fmt: skip
_WHY = (
    "because the roof was leaking", "although nobody had asked for it", "and was paid very little",
    "which surprised the whole town", "so that the children could use it", "as the law requires",
    "but the newspapers did not notice", "and then moved to another city",
)  # fmt: skip


def generated_sentences(count: int, seed: int = 0) -> list[str]:
    """So many different sentences; the same ones on every machine for the same seed."""
    chosen = random.Random(seed)  # noqa: S311  (not a secret)
    found: dict[str, None] = {}
    while len(found) < count:
        who, does, what, when, why = map(chosen.choice, (_WHO, _DOES, _WHAT, _WHEN, _WHY))
        found[f"{who[0].upper()}{who[1:]} {does} {what} {when}, {why}."] = None
    return list(found)
