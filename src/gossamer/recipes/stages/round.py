# SPDX-License-Identifier: Apache-2.0
"""What a `round` stage says, as data; see `schema.py`."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gossamer.recipes.stages.shared_fields import Rules


class Round(BaseModel):
    """Weights on the integer grids of kernels and files, or in bf16."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    layers: Literal["int8", "int4", "int4_offset", "bf16"] | None = Field(
        default="int8", description="Of Linear and Conv2d, pruned or not; null: left alone."
    )
    embeddings: Literal["int8", "int4", "int4_offset", "bf16"] | None = Field(
        default=None, description="Of Embedding; null: left alone."
    )
    ignore: Rules | None = Field(
        default=None, description="Classes, globs or re:... to leave alone."
    )

    @model_validator(mode="after")
    def _check(self) -> "Round":
        raw = {name: getattr(self, name) for name in self.model_fields_set}
        found = [f"{field}: {message}" for field, message in round_faults(raw)]
        if found:
            raise ValueError(" ".join(found))
        return self


def round_faults(step: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, message) of settings that do not go together, on the raw mapping of a file."""
    if step.get("layers", "int8") is None and step.get("embeddings") is None:
        yield "layers", "neither layers nor embeddings are given, so there is nothing to round."
