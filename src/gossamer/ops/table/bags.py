# SPDX-License-Identifier: Apache-2.0
"""Which ids are looked up together: what torch.nn.EmbeddingBag is called with, checked.

Legend: P positions (ids of a batch), N bags.
"""

from dataclasses import dataclass

import torch

from gossamer.errors import InputError
from gossamer.ops import _native
from gossamer.ops.addresses import address

_WHERE = "table"


@dataclass(frozen=True, eq=False)
class Bags:
    """A batch of bags.

    Attributes:
        ids: int64 [P].
        offsets: int64 [N + 1], where each bag begins and the last one ends; None if all have
            `bag_size` ids.
        bag_size: ids of a bag without offsets.
        num_bags: N.
        weights: float32 [P], or None.
        mean: bags are averaged, not summed; ids that do not count are left out.
        padding: an id that does not count, -1 for none.
    """

    ids: torch.Tensor
    offsets: torch.Tensor | None
    bag_size: int
    num_bags: int
    weights: torch.Tensor | None = None
    mean: bool = False
    padding: int = -1

    @classmethod
    def of(
        cls,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        mode: str = "sum",
        padding: int = -1,
        include_last_offset: bool = False,
    ) -> "Bags":
        """From the arguments of torch.nn.EmbeddingBag; InputError says what is wrong with them."""
        _check_ids(ids)
        if ids.ndim not in (1, 2):
            raise InputError(
                f"table: ids must be [P] with offsets, or [N, k]; got {list(ids.shape)}."
            )
        if weights is not None:
            _check_weights(ids, weights, mode)
            weights = weights.reshape(-1).contiguous()
        flat = ids.reshape(-1).contiguous().long()
        if ids.ndim == 2:
            if offsets is not None:
                raise InputError("table: ids [N, k] are bags already; offsets must be None.")
            return cls(flat, None, ids.shape[1], len(ids), weights, mode == "mean", padding)
        if offsets is None:
            raise InputError("table: ids [P] need offsets, which say where the bags begin.")
        if offsets.ndim != 1 or offsets.dtype not in (torch.int32, torch.int64):
            raise InputError(
                f"table: offsets must be int32 or int64 [N], got {offsets.dtype}"
                f" {list(offsets.shape)}."
            )
        if include_last_offset and not len(offsets):
            raise InputError("table: with include_last_offset there is at least one offset.")
        offsets = offsets.long()
        if not include_last_offset:
            offsets = torch.cat([offsets, offsets.new_tensor([len(flat)])])
        ends = offsets.contiguous()
        return cls(flat, ends, 0, len(ends) - 1, weights, mode == "mean", padding)

    @classmethod
    def single(cls, ids: torch.Tensor, padding: int = -1) -> "Bags":
        """Each id is a bag of its own, as in torch.nn.Embedding; ids of any shape."""
        _check_ids(ids)
        flat = ids.reshape(-1).contiguous().long()
        return cls(flat, None, 1, len(flat), padding=padding)

    def native(self) -> _native.Bags:
        """As native code takes it; this object must outlive the call."""
        try:
            return _native.bags(
                address(self.ids, _WHERE),
                len(self.ids),
                address(self.offsets, _WHERE),
                self.bag_size,
                self.num_bags,
                address(self.weights, _WHERE),
                self.mean,
                self.padding,
            )
        except ValueError as error:
            raise InputError(f"table: {error}.") from error

    def bag_of(self) -> torch.Tensor:
        """The bag of each position, int64 [P]; positions behind the last bag have N."""
        if self.offsets is None:
            return torch.arange(self.num_bags, device=self.ids.device).repeat_interleave(
                self.bag_size
            )
        positions = torch.arange(len(self.ids), device=self.ids.device)
        return torch.searchsorted(self.offsets[1:].contiguous(), positions, right=True)

    def counted(self) -> torch.Tensor:
        """Whether each position counts, bool [P]."""
        return self.ids != self.padding


def _check_ids(ids: torch.Tensor) -> None:
    if ids.dtype not in (torch.int32, torch.int64):
        raise InputError(f"table: ids must be int32 or int64, got {ids.dtype}.")


def _check_weights(ids: torch.Tensor, weights: torch.Tensor, mode: str) -> None:
    if mode != "sum":
        raise InputError(f"table: per_sample_weights are for mode 'sum', not {mode!r}.")
    if weights.shape != ids.shape or not weights.is_floating_point():
        raise InputError(
            f"table: per_sample_weights must be floats of the shape of the ids {list(ids.shape)},"
            f" got {weights.dtype} {list(weights.shape)}."
        )
