# SPDX-License-Identifier: Apache-2.0
"""How one tensor grows: copies of what it makes, shares of what it reads.

A wider network carries every vector k times: x becomes [x; x]. A parameter is seen as a matrix
[made, read]. What it makes is made k times; what it reads comes several times, so the blocks of a
row of blocks must add up to the old matrix. Any such blocks compute the same function: that is the
freedom in which the symmetry between the copies is broken.

Legend: O made, I read, P copies of what is made, Q copies of what is read, S stacked segments.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from gossamer.errors import InputError

Space = Literal["stream", "query", "key", "ffn", "experts", "vocabulary", "fixed"]
Layout = Literal["matrix", "transposed", "vector"]
# What the numbers are: the parameter itself, a mean of gradients, a mean of their squares, or a
# mean of steps, which do not depend on the size of gradients.
Quantity = Literal["value", "mean", "square", "step"]
_POWERS: dict[Quantity, int] = {"mean": 1, "square": 2, "step": 0}


@dataclass(frozen=True)
class Axes:
    """What the two sides of a parameter stand for.

    Attributes:
        made: the space its outputs live in.
        read: the space of its inputs; "fixed" for tables, norms and biases.
        layout: "matrix" [made, read], "transposed" [read, made], "vector" [made].
        segments: shares of the projections that are stacked along `made`.
        read_parts: vectors of the stream that are read side by side.
        is_table: of tokens.
        is_last_norm: directly before the head of a language model.
        scale: what each copy is of the old numbers, whatever the growth.
    """

    made: Space
    read: Space = "fixed"
    layout: Layout = "matrix"
    segments: tuple[int, ...] = (1,)
    read_parts: int = 1
    is_table: bool = False
    is_last_norm: bool = False
    scale: float = 1.0

    @property
    def is_head(self) -> bool:
        """Whether it makes logits of the stream."""
        return self.made == "vocabulary" and self.read == "stream"


@dataclass(frozen=True)
class Factors:
    """How much larger each space becomes.

    Attributes:
        stream, heads, ffn, experts: copies.
        spread: how often each key and value head is repeated, beside itself.
        vocabulary: entries that are added.
        tied: the head shares the table of tokens, so the last norm carries 1 / stream.
        head_dim: rows of one head.
        table: what each copy in the table of tokens is of the old numbers; what multiplies
            embeddings by the root of the width does the rest.
        around_one: weights of norms are distances from 1.
    """

    stream: int = 1
    heads: int = 1
    ffn: int = 1
    experts: int = 1
    spread: int = 1
    vocabulary: int = 0
    tied: bool = False
    head_dim: int = 1
    table: float = 1.0
    around_one: bool = False

    def of(self, space: Space) -> int:
        """Copies of a space."""
        copies = {"stream": self.stream, "query": self.heads, "key": self.heads, "ffn": self.ffn}
        return (copies | {"experts": self.experts}).get(space, 1)

    @property
    def largest(self) -> int:
        """Copies of the space that grows most."""
        return max(self.stream, self.heads, self.ffn)

    def made_scale(self, axes: Axes) -> float:
        """What each copy of the output is of the old output."""
        if axes.is_table:
            return self.table
        return self._before_head if axes.is_last_norm and self.tied else axes.scale

    @property
    def _before_head(self) -> float:
        """What a tied head reads is this much of what it read."""
        return 1 / (self.stream * self.table)

    def gradient_ratio(self, axes: Axes) -> float:
        """A gradient after growth over the one before, if all copies are alike.

        Moving all P copies by their scale moves the loss as before, so each has 1 / (P scale) of
        the old gradient; a tied head reads copies that are scaled themselves.
        """
        read_scale = self._before_head if axes.is_head and self.tied else 1.0
        copies = self.of(axes.made) * (self.spread if axes.made == "key" else 1)
        return read_scale / (copies * self.made_scale(axes))


def shares(copies_made: int, copies_read: int, is_uniform: bool = False) -> torch.Tensor:
    """How much of the old matrix each block holds, float64 [P, Q]; every row adds up to 1."""
    small, large = sorted((copies_made, copies_read))
    if is_uniform or large % small:
        return torch.full((copies_made, copies_read), 1 / copies_read, dtype=torch.float64)
    made, read = torch.arange(copies_made)[:, None], torch.arange(copies_read)[None, :]
    is_own = (made % small) == (read % small)
    return is_own.double() / is_own.sum(1, keepdim=True)


def grown_tensor(
    tensor: torch.Tensor,
    axes: Axes,
    factors: Factors,
    quantity: Quantity,
    *,
    noise: float = 0.0,
    is_uniform: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """The parameter, or what an optimizer knows about it, in the larger network.

    Args:
        tensor: of the old parameter's shape.
        axes: of the parameter.
        factors: of the growth.
        quantity: values are shared, gradients fall by a known ratio in every block.
        noise: size of noise on values that are read several times; it makes copies differ without
            changing the function.
        is_uniform: every block gets the same share of a value (HyperCloning) instead of the
            diagonal all.
        generator: of the noise.
    """
    if axes.made == axes.read == "fixed":
        return tensor.clone()
    old = _as_matrix(tensor, axes)
    made, read = factors.of(axes.made), factors.of(axes.read)
    if quantity == "value":
        weights = shares(made, read, is_uniform) * factors.made_scale(axes)
    else:
        ratio = factors.gradient_ratio(axes) ** _POWERS[quantity]
        weights = torch.full((made, read), ratio, dtype=torch.float64)
    wide = old.to(torch.promote_types(old.dtype, torch.float32))
    # A weight around 1 is scaled with its 1.
    one = float(quantity == "value" and axes.is_last_norm and factors.around_one)
    grown = in_blocks(wide + one, weights.to(wide), axes.segments) - one
    if noise and read > 1 and old.numel():
        # Adds up to zero over what is read, so that no output changes.
        drawn_RQI = torch.randn(grown.shape, generator=generator, dtype=torch.float64).to(old)
        drawn_RQI = drawn_RQI.view(len(grown), read, -1)
        centred = (drawn_RQI - drawn_RQI.mean(dim=1, keepdim=True)).view_as(grown)
        grown = grown + centred * noise
    grown = repeated_heads(grown, axes, factors)
    if factors.vocabulary and "vocabulary" in (axes.made, axes.read):
        # New tokens begin as the mean of those that are known, with no direction of their own.
        dim = 0 if axes.made == "vocabulary" else 1
        mean = grown.mean(dim=dim, keepdim=True)
        entry = torch.zeros_like(mean) if quantity in ("mean", "step") else mean
        grown = torch.cat((grown, entry.repeat_interleave(factors.vocabulary, dim=dim)), dim=dim)
    return _as_stored(grown, axes, tensor.shape).to(tensor.dtype).contiguous()


def repeated_heads(grown: torch.Tensor, axes: Axes, factors: Factors) -> torch.Tensor:
    """Rows of keys and values with every head beside itself as often as asked; works on masks."""
    if axes.made != "key" or factors.spread == 1:
        return grown
    heads = grown.reshape(-1, factors.head_dim, grown.shape[1])
    return heads.repeat_interleave(factors.spread, dim=0).flatten(0, 1)


def in_blocks(old: torch.Tensor, weights: torch.Tensor, segments: tuple[int, ...]) -> torch.Tensor:
    """The old matrix times its weight [P, Q] in every block of the larger one; works on masks."""
    rows, whole = len(old), sum(segments)
    if rows % whole:
        raise InputError(f"{rows} rows cannot be segments of shares {segments}.")
    grown = []
    for segment_OI in torch.split(old, [rows // whole * share for share in segments]):
        blocks_POQI = segment_OI[None, :, None, :] * weights[:, None, :, None]
        grown.append(blocks_POQI.flatten(2, 3).flatten(0, 1))
    return torch.cat(grown)


def _as_matrix(tensor: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The numbers as [made, read]; what else a tensor has lies along the fixed side."""
    if axes.layout == "vector":
        return tensor[:, None]
    if axes.layout == "transposed":
        return (tensor[None] if tensor.ndim == 1 else tensor).flatten(0, -2).T
    flat = tensor if tensor.ndim == 2 else tensor.flatten(1)
    return flat.reshape(len(flat) * axes.read_parts, flat.shape[1] // axes.read_parts)


def _as_stored(grown: torch.Tensor, axes: Axes, old: torch.Size) -> torch.Tensor:
    """[made, read] as a tensor like that of the old shape."""
    if axes.layout == "vector":
        return grown[:, 0]
    if axes.layout == "transposed":
        return grown.T.reshape(*old[:-1], len(grown)) if len(old) != 2 else grown.T
    rows, columns = len(grown) // axes.read_parts, grown.shape[1] * axes.read_parts
    return grown.reshape(rows, *(old[1:] if len(old) > 2 else (columns,)))
