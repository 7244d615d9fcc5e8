# SPDX-License-Identifier: Apache-2.0
"""A decoder that runs natively from token numbers to logits, one call per step.

Legend: T tokens, V vocabulary, D width of a head.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gossamer.errors import InputError, KernelError, ResourceError
from gossamer.ops import _native
from gossamer.ops.engines.neurons import PackedNeurons
from gossamer.ops.kernels import active_kernels
from gossamer.ops.linear import PackedWeight
from gossamer.ops.packed import float_array, optional_array
from gossamer.out_of_memory import names_memory
from gossamer.patterns.attention.key_rules import KEY_TYPES, KeyRules

if TYPE_CHECKING:
    from gossamer.ops.engines.decoder_experts import DecoderExperts

__all__ = [
    "DecoderBlock",
    "DecoderNorm",
    "DecoderRules",
    "DecoderShape",
    "NativeDecoder",
    "NativeSession",
    "PackedLayer",
    "key_bytes",
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


# What the feed-forward part may compute, by the number that native code gives it.
DECODER_ACTIVATIONS: Final = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3}


@dataclass(frozen=True)
class DecoderRules:
    """What holds for all layers of a decoder; the defaults are those of Llama.

    Attributes:
        activation: a key of `DECODER_ACTIVATIONS`.
        layer_norm: norms subtract the mean and have a bias.
        gated: the feed-forward part multiplies gate and up; else it has up alone.
        parallel: the feed-forward part reads what attention reads, not its sum.
        interleaved: rows of `qkv` are query, key and value of one head, then of the next.
        embedding_scale: factor of the embeddings.
        residual_scale: factor of what attention and feed-forward part add.
        logits_scale: factor of the logits.
        score_cap: scores stay softly below it; 0: they are free.
        logits_cap: the same for logits.
    """

    activation: str = "silu"
    layer_norm: bool = False
    gated: bool = True
    parallel: bool = False
    interleaved: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    score_cap: float = 0.0
    logits_cap: float = 0.0

    def native(self) -> dict[str, object]:
        """As the native decoder takes them."""
        return vars(self) | {"activation": DECODER_ACTIVATIONS[self.activation]}


@dataclass(frozen=True)
class DecoderNorm:
    """RMSNorm, or with a bias LayerNorm; `rectified`: with a ReLU behind it."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float
    rectified: bool = False

    def native(self) -> tuple[object, object, float, bool]:
        """As the native decoder takes it."""
        return float_array(self.weight), optional_array(self.bias), self.eps, self.rectified


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
    """One layer: rows of `qkv` are queries, keys, values, those of `gate_up` gate and up.

    Attributes:
        gate_up: None, as `down`, in a layer of experts.
        norms: of what attention reads and gives, of what the feed-forward part reads and gives, of
            queries and of keys: of each head, or of all as one. None: there is no such norm.
        experts: the feed-forward part, or None.
        rotation: number of the angles that turn its heads; -1: they are not turned.
        window: positions that a token attends to, its own included; 0: all.
        scale: of the scores.
        cut: of ReLU: what is taken off, and the number up to which it gives 0.
        neurons: the feed-forward part of one token, if its neurons are mostly zero.
    """

    qkv: PackedLayer
    out: PackedLayer
    gate_up: PackedLayer | None
    down: PackedLayer | None
    norms: tuple[DecoderNorm | None, ...]
    rotation: int
    window: int
    scale: float
    experts: "DecoderExperts | None" = None
    cut: tuple[float, float] = (0.0, 0.0)
    neurons: PackedNeurons | None = None

    @property
    def dense_linears(self) -> tuple[PackedLayer, ...]:
        """The weights that all tokens read, without those of a mixture: four, or two."""
        parts = (self.qkv, self.out, self.gate_up, self.down)
        return tuple(part for part in parts if part is not None)

    @property
    def linears(self) -> tuple[PackedLayer, ...]:
        """All weights."""
        return self.dense_linears + (() if self.experts is None else self.experts.linears)

    @property
    def token_bytes(self) -> int:
        """Bytes that one token reads."""
        mixture = 0 if self.experts is None else self.experts.token_bytes
        return mixture + sum(linear.nbytes for linear in self.dense_linears)


class NativeDecoder:
    """The weights of a decoder; immutable, any number of sessions may run on it.

    Args:
        shape: sizes.
        embedding: [V, width], of a family whose rows can be read (few/bitmask, few_int).
        blocks: the layers.
        final_norm: [width].
        head: [V, width]; may be the embedding.
        rotations: (cosines, sines), each [positions, rotated pairs of a head]; fewer positions than
            the context where sessions have a window that is not longer.
        positions: [context, width], added to the embeddings; or None.
        rules: what holds for all layers; None: those of Llama.
    """

    @names_memory("packing a decoder", "Free memory.")
    def __init__(
        self,
        shape: DecoderShape,
        embedding: PackedWeight,
        blocks: list[DecoderBlock],
        final_norm: DecoderNorm,
        head: PackedLayer,
        rotations: list[tuple[torch.Tensor, torch.Tensor]],
        positions: torch.Tensor | None = None,
        rules: DecoderRules | None = None,
    ) -> None:
        self.shape = shape
        try:
            self._native = _native.make_decoder(
                kernels=active_kernels(),
                **vars(shape),
                **(rules or DecoderRules()).native(),
                embedding=embedding._native,
                head=head.native(),
                final_norm=final_norm.native(),
                positions=None if positions is None else float_array(positions.flatten()),
                rotations=tuple(
                    (cosines.shape[1], float_array(cosines.flatten()), float_array(sines.flatten()))
                    for cosines, sines in rotations
                ),
            )
            for block in blocks:
                self._native.add_layer(
                    tuple(linear.native() for linear in block.dense_linears),
                    tuple(None if norm is None else norm.native() for norm in block.norms),
                    block.rotation,
                    block.window,
                    block.scale,
                    None if block.experts is None else block.experts.native(),
                    (*block.cut, None if block.neurons is None else block.neurons._native),
                )
        except ValueError as error:
            raise KernelError(
                f"{error}. The configuration of this model and its weights do not agree."
            ) from error


def key_bytes(layers: int, kv_heads: int, head_dim: int, context: int, rules: KeyRules) -> int:
    """Bytes of keys and values of a sequence that is as long as the context."""
    return _native.decoder_cache_bytes(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        type=KEY_TYPES.index(rules.dtype),
        sinks=rules.sinks,
        window=rules.window,
        chosen=rules.pages,
    )


class NativeSession:
    """Keys and values of one sequence.

    Args:
        decoder: what runs it.
        rules: which keys a token attends to, and what they are stored in; None: all, fp32.
    """

    def __init__(self, decoder: NativeDecoder, rules: KeyRules | None = None) -> None:
        self._shape = decoder.shape
        rules = rules or KeyRules()
        try:
            self._native = _native.make_session(
                decoder._native,
                type=KEY_TYPES.index(rules.dtype),
                sinks=rules.sinks,
                window=rules.window,
                chosen=rules.pages,
                whole_layers=rules.whole,
                mass=rules.mass,
            )
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
        if not self.can_truncate(self.length):
            raise ResourceError(
                "decoder: an earlier step ran out of memory and wrote over keys of the window."
                " Begin a new session."
            )
        rows = len(ids) if every else 1
        logits = torch.empty(rows, self._shape.vocab, dtype=torch.float32, device="cpu")
        self._native.step(ids, every, logits.numpy())
        return logits

    def can_truncate(self, length: int) -> bool:
        """Whether all that the token behind the first `length` attends to is still held."""
        return self._native.can_truncate(length)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self._native.truncate(length)
