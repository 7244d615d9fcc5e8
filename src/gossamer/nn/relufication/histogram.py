# SPDX-License-Identifier: Apache-2.0
"""Quantiles of numbers that come in parts."""

import torch

from gossamer.errors import InputError

_BINS = 8192


class Histogram:
    """Numbers that come in parts, and their quantiles.

    Two passes: `widen` learns the range, `count` fills equal bins.
    """

    def __init__(self) -> None:
        self._low, self._high = float("inf"), float("-inf")
        self._counts = torch.zeros(_BINS, dtype=torch.float64)

    def widen(self, values: torch.Tensor) -> None:
        """Let the range include `values`."""
        if values.numel():
            low, high = (float(bound) for bound in values.aminmax())
            if not (abs(low) < float("inf") and abs(high) < float("inf")):
                raise InputError("histogram: values hold NaN or infinity.")
            self._low, self._high = min(self._low, low), max(self._high, high)

    def count(self, values: torch.Tensor) -> None:
        """Count `values`, all inside the range."""
        if self._high > self._low:
            flat = values.detach().float().flatten().cpu()
            counts = torch.histc(flat, _BINS, self._low, self._high)
            self._counts += counts.double()

    def quantile(self, fraction: float) -> float:
        """The number below which `fraction` of all values lie, linear within a bin."""
        total = float(self._counts.sum())
        if not total:
            if self._high == self._low:
                return self._low
            raise InputError("histogram: no values were counted.")
        sums = self._counts.cumsum(0)
        wanted = fraction * total
        place = min(int(torch.searchsorted(sums, wanted)), _BINS - 1)
        inside = float(self._counts[place])
        before = float(sums[place]) - inside
        share = (wanted - before) / inside if inside else 0.0
        return self._low + (place + share) * (self._high - self._low) / _BINS
