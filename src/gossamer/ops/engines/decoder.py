# SPDX-License-Identifier: Apache-2.0
"""A Llama-type decoder that runs natively from token numbers to logits, one call per step.

Legend: T tokens, V vocabulary, D width of a head.
"""

from dataclasses import dataclass

import numpy as np
import torch

from gossamer.errors import InputError, KernelError, ResourceError
from gossamer.ops import _native
from gossamer.ops.kernels import active_kernels
from gossamer.ops.linear import PackedWeight
from gossamer.ops.packed import float_array, optional_array
from gossamer.out_of_memory import names_memory

__all__ = [
    "DecoderBlock",
    "DecoderShape",
    "NativeDecoder",
    "NativeSession",
    "PackedLayer",
]


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder; `context` is the most tokens a sequence can have."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    eps: float


@dataclass(frozen=True)
class PackedLayer:
    """One weight of a decoder.

    Attributes:
        few: runs up to 16 tokens, and more where there is no `many`.
        many: runs more than 16 tokens.
        bias: float32 or None.
    """

    few: PackedWeight
    many: PackedWeight | None = None
    bias: torch.Tensor | None = None

    def native(self) -> tuple[object, object, object]:
        """As the native decoder takes it."""
        many = None if self.many is None else self.many._native
        return self.few._native, many, optional_array(self.bias)

    @property
    def nbytes(self) -> int:
        """Bytes that one token reads."""
        return self.few.nbytes

    @property
    def resident_bytes(self) -> int:
        """Bytes in memory."""
        return self.few.nbytes + (0 if self.many is None else self.many.nbytes)


@dataclass(frozen=True)
class DecoderBlock:
    """One layer: rows of `qkv` are queries, keys, values, those of `gate_up` gate and up."""

    attention_norm: torch.Tensor
    qkv: PackedLayer
    out: PackedLayer
    ffn_norm: torch.Tensor
    gate_up: PackedLayer
    down: PackedLayer

    @property
    def linears(self) -> tuple[PackedLayer, ...]:
        """The four weights."""
        return self.qkv, self.out, self.gate_up, self.down


class NativeDecoder:
    """The weights of a decoder; immutable, any number of sessions may run on it.

    Args:
        shape: sizes.
        embedding: [V, width], of a family whose rows can be read (few/bitmask, few_int).
        blocks: the layers.
        final_norm: [width].
        head: [V, width]; may be the embedding.
        angles: (cosines, sines) [context, D / 2].
    """

    @names_memory("packing a decoder", "Free memory.")
    def __init__(
        self,
        shape: DecoderShape,
        embedding: PackedWeight,
        blocks: list[DecoderBlock],
        final_norm: torch.Tensor,
        head: PackedLayer,
        angles: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        self.shape = shape
        try:
            self._native = _native.make_decoder(
                kernels=active_kernels(),
                **vars(shape),
                embedding=embedding._native,
                head=head.native(),
                final_norm=float_array(final_norm),
                cosines=float_array(angles[0].flatten()),
                sines=float_array(angles[1].flatten()),
            )
            for block in blocks:
                self._native.add_layer(
                    float_array(block.attention_norm),
                    block.qkv.native(),
                    block.out.native(),
                    float_array(block.ffn_norm),
                    block.gate_up.native(),
                    block.down.native(),
                )
        except ValueError as error:
            raise KernelError(
                f"{error}. The configuration of this model and its weights do not agree."
            ) from error


class NativeSession:
    """Keys and values of one sequence, for the whole context of its decoder."""

    def __init__(self, decoder: NativeDecoder) -> None:
        self._shape = decoder.shape
        try:
            self._native = _native.DecoderSession(decoder._native)
        except ResourceError as error:
            raise ResourceError(
                f"decoder: out of memory for keys and values of {decoder.shape.context} tokens. Use"
                " a smaller context."
            ) from error

    @property
    def context(self) -> int:
        """Tokens it can hold."""
        return self._shape.context

    @property
    def length(self) -> int:
        """Tokens it holds."""
        return self._native.length

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self._native.cache_bytes

    @names_memory("decoder", "Run fewer tokens.")
    def step(self, ids: "np.typing.NDArray[np.int32]", every: bool = False) -> torch.Tensor:
        """Append tokens; logits [1, V] behind the last one, or [T, V] behind every one."""
        if not len(ids):
            raise InputError("decoder: there is no token to run; a prompt needs at least one.")
        outside = (ids < 0) | (ids >= self._shape.vocab)
        if outside.any():
            at = int(outside.argmax())
            raise InputError(
                f"decoder: token {int(ids[at])} at position {at} is outside the vocabulary of"
                f" {self._shape.vocab}. Use the tokenizer of this model."
            )
        if self.length + len(ids) > self._shape.context:
            raise InputError(
                f"decoder: {self.length} tokens are held and {len(ids)} are to come, but the"
                f" context is {self._shape.context}. Shorten the prompt, or build the engine with a"
                " larger context."
            )
        rows = len(ids) if every else 1
        logits = torch.empty(rows, self._shape.vocab, dtype=torch.float32, device="cpu")
        self._native.step(ids, every, logits.numpy())
        return logits

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self._native.truncate(length)
