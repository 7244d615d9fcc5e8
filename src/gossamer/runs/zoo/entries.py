# SPDX-License-Identifier: Apache-2.0
"""The named models: how each is made, and what that gave where it was recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

ZEN5: Final = "AMD EPYC (Zen 5, AVX-512), one thread, torch 2.13.0"
# How `making.kernel_set` calls that machine.
_SET: Final = "avx512, AVX512, AMD EPYC model 2, torch 2.13.0"


@dataclass(frozen=True)
class Entry:
    """One model of the zoo.

    Attributes:
        name: what it is asked for by.
        description: one line.
        verb: whether it is pruned or trained.
        recipe: a built-in one.
        overrides: "name=value" in the recipe.
        model: for `prune`, a packaged model.
        data: "sentences:N" for N generated ones, a generated data set of the zoo, or empty.
        score: what the quality is called.
        lower_is_better: of the score.
        dense: score of the dense model; None where it was not measured.
        reached: score of the artifact.
        tolerance: by how much the score may differ on other machines.
        weight_bytes: of the artifact's tensor files.
        digests: of the tensor files, by kernel set.
        milliseconds: (dense, this model) by machine, of the call that the report times.
        minutes: what making it took there, about.
    """

    name: str
    description: str
    verb: Literal["prune", "train"]
    recipe: str
    overrides: tuple[str, ...]
    data: str
    score: str
    reached: float
    tolerance: float
    weight_bytes: int
    minutes: float
    model: str = ""
    dense: float | None = None
    lower_is_better: bool = False
    digests: Mapping[str, str] = field(default_factory=dict)
    milliseconds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


ENTRIES: Final[tuple[Entry, ...]] = (
    Entry(
        name="images-gradual-90",
        description="an MLP on generated images, 90 % zeros by magnitude while it trains",
        verb="train",
        recipe="train-gradual",
        overrides=("steps=600", "stages.0.train.compaction=jit"),
        data="zoo:images",
        score="accuracy",
        reached=0.994,
        tolerance=0.02,
        weight_bytes=193_420,
        minutes=0.7,
        digests={_SET: "5819571f046ac9b4872268a545714333503cd863293cd53d2ac356bbc4fe4b7d"},
    ),
    Entry(
        name="minilm-magnitude-50",
        description="MiniLM-L6, half of every layer's weights by magnitude",
        verb="prune",
        recipe="magnitude-50",
        overrides=("sparsity=0.5",),
        model="minilm",
        data="sentences:192",
        score="agreement with the dense model",
        dense=1.0,
        reached=0.8485,
        tolerance=0.02,
        weight_bytes=70_685_816,
        minutes=2.2,
        digests={_SET: "c5e2ac6c93964e8f2b4af324926bb537cbafd51c650f6f4afa2ae98b2c861880"},
    ),
)
