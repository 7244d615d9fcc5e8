# SPDX-License-Identifier: Apache-2.0
"""Stages that make experts, and stages that leave fewer of them.

`Upcycle` copies feed-forward parts, `Moefy` deals their neurons out, `FewerExperts` drops or merges
experts.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from gossamer.recipes.base import Found, Raw, Seed, Share, StageSettings

__all__ = ["FewerExperts", "Moefy", "Upcycle"]

_Experts = Annotated[int, Field(ge=2, le=65536)]
_TopK = Annotated[int, Field(ge=1, le=65536)]


def _too_many(raw: Raw, field: str, most: int) -> Found:
    asked = raw.get(field)
    if isinstance(asked, int) and asked > most:
        yield field, f"must be at most {most}, the experts there are, got {asked}."


class Upcycle(StageSettings):
    """Every feed-forward part becomes several experts, its copies; the model computes the same."""

    changes_shapes: ClassVar = True
    fractions: ClassVar = {"noise": "[0, 1)"}

    experts: _Experts = 8
    """Copies of every feed-forward part."""
    top_k: _TopK = 2
    """Experts of a token."""
    noise: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Added to all copies but the first, as a part of the weights' standard deviation."""
    seed: Seed = 0
    """Of routers and noise."""

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """A token cannot have more experts than there are."""
        experts = raw.get("experts", 8)
        if isinstance(experts, int):
            yield from _too_many({"top_k": raw.get("top_k", 2)}, "top_k", experts)

    @property
    def needs_data(self) -> bool:
        """Copies need none."""
        return False


class Moefy(StageSettings):
    """Neurons of feed-forward parts become experts: those that fire together, with a router."""

    changes_shapes: ClassVar = True

    experts: _Experts = 16
    """Parts of one size, shared ones included; they divide the neurons."""
    top_k: _TopK = 4
    """Routed experts of a token."""
    shared: int = Field(default=0, ge=0, le=65536)
    """Experts that every token has: the neurons that give most."""
    seed: Seed = 0
    """Of the first centres."""

    @classmethod
    def faults(cls, raw: Raw) -> Found:
        """A token cannot have more experts than there are."""
        experts, shared = raw.get("experts", 16), raw.get("shared", 0)
        if isinstance(experts, int) and isinstance(shared, int):
            yield from _too_many({"shared": shared}, "shared", experts - 1)
            yield from _too_many({"top_k": raw.get("top_k", 4)}, "top_k", experts - shared)


class FewerExperts(StageSettings):
    """Experts that give least on the data are taken out of every mixture."""

    changes_shapes: ClassVar = True
    fractions: ClassVar = {"keep": "(0, 1]"}

    keep: Share = 0.5
    """Part of the experts that stay."""
    how: Literal["drop", "merge"] = "drop"
    """merge: a dropped one is averaged with the kept one that is most like it."""
