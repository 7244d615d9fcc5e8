# SPDX-License-Identifier: Apache-2.0
"""A decoder that runs natively from token numbers to logits, one call per step. Free of torch.

Legend: T tokens, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gossamer.errors import InputError, KernelError, ResourceError
from gossamer.ops import _native
from gossamer.ops.kernels import active_kernels
from gossamer.out_of_memory import names_memory
from gossamer.patterns.attention.key_rules import KEY_TYPES, KeyRules

__all__ = [
    "DecoderPlan",
    "DecoderRules",
    "DecoderShape",
    "NativeDecoder",
    "NativeSession",
    "key_bytes",
]

Logits = np.typing.NDArray[np.float32]


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
class DecoderPlan:
    """Everything of a decoder: plain data, arrays of floats and packed weights.

    Attributes:
        shape: sizes.
        rules: what holds for all layers.
        settings: what else the native decoder is made with.
        layers: what each layer is added with.
    """

    shape: DecoderShape
    rules: DecoderRules
    settings: dict[str, Any]
    layers: tuple[tuple[Any, ...], ...]


class NativeDecoder:
    """The weights of a decoder; immutable, any number of sessions may run on it."""

    @names_memory("packing a decoder", "Free memory.")
    def __init__(self, plan: DecoderPlan) -> None:
        self.shape = plan.shape
        self.layers = len(plan.layers)
        try:
            told: dict[str, Any] = {**vars(plan.shape), **plan.rules.native(), **plan.settings}
            self._native = _native.make_decoder(kernels=active_kernels(), **told)
            for layer in plan.layers:
                self._native.add_layer(*layer)
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
    def step(self, ids: "np.typing.NDArray[np.int32]", every: bool = False) -> Logits:
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
        logits = np.empty((rows, self._shape.vocab), dtype=np.float32)
        self._native.step(ids, every, logits)
        return logits

    def can_truncate(self, length: int) -> bool:
        """Whether all that the token behind the first `length` attends to is still held."""
        return self._native.can_truncate(length)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self._native.truncate(length)
