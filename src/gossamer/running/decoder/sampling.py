# SPDX-License-Identifier: Apache-2.0
"""How the next token is taken from logits: the likeliest one, or drawn.

Legend: V vocabulary.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gossamer.errors import InputError, KernelError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Sampling:
    """Settings of a draw.

    Attributes:
        temperature: logits are divided by it; 0 takes the likeliest token always.
        top_k: only so many of the likeliest tokens; None = all.
        top_p: only the likeliest tokens whose probabilities add up to this; 1 = all.
        seed: of the draws, in 64 bits. The same seed gives the same tokens.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise InputError(f"sampling: temperature must be 0 or more, got {self.temperature}.")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"sampling: top_k must be at least 1 or None, got {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise InputError(f"sampling: top_p must be in (0, 1], got {self.top_p}.")
        if not -(2**63) <= self.seed < 2**64:
            raise InputError(f"sampling: seed must fit into 64 bits, got {self.seed}.")


class Sampler:
    """Draws one token after the other; torch is needed from the first draw on, if there is one."""

    def __init__(self, settings: Sampling) -> None:
        self._settings = settings
        self._generator: Any = None

    def __call__(self, logits_V: "np.typing.NDArray[np.float32] | torch.Tensor") -> int:
        """The next token."""
        found_V = np.asarray(logits_V)
        likeliest = int(found_V.argmax())
        # argmax finds a NaN before anything else.
        if not np.isfinite(found_V[likeliest]):
            raise KernelError(
                f"decoder: the logits hold {float(found_V[likeliest])}: the weights or the"
                " activations of this model are not finite."
            )
        if self._settings.temperature == 0:
            return likeliest
        return self._drawn(found_V)

    def _drawn(self, logits_V: "np.typing.NDArray[np.float32]") -> int:
        import torch

        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self._settings.seed)
        kept_V = probabilities(torch.from_numpy(logits_V), self._settings)
        return int(torch.multinomial(kept_V, 1, generator=self._generator))


def probabilities(logits_V: "torch.Tensor", settings: Sampling) -> "torch.Tensor":
    """What a token is drawn from; tokens that are cut off have 0."""
    import torch

    ordered, tokens = logits_V.double().sort(descending=True, stable=True)
    # The largest one is taken off first: however small the temperature, its quotient is 0.
    chances = ((ordered - ordered[0]) / settings.temperature).softmax(0)
    if settings.top_p < 1:
        before = chances.cumsum(0) - chances
        chances = torch.where(before < settings.top_p, chances, 0.0)  # what crosses it stays
    if settings.top_k is not None:
        chances[settings.top_k :] = 0.0
    return torch.zeros_like(chances).scatter(0, tokens, chances / chances.sum())
