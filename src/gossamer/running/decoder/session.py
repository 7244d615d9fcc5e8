# SPDX-License-Identifier: Apache-2.0
"""Text generation with a packed decoder: one native call per token.

Free of torch, but for tensors that somebody asks for.

Legend: T tokens, V vocabulary.
"""

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import numpy as np

from gossamer.errors import InputError
from gossamer.ops.engines.decoder_session import NativeDecoder, NativeSession, key_bytes
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder.sampling import Sampler, Sampling

if TYPE_CHECKING:
    from typing import Self

    import torch

# The token numbers of one sequence.
TokenIds = Union[Sequence[int], "torch.Tensor"]
Logits = np.typing.NDArray[np.float32]


@dataclass(frozen=True)
class DecoderSize:
    """What a decoder weighs.

    Attributes:
        weights: in the layers, zeros included.
        kept: of them.
        layer_bytes: of the packed layers.
        active_bytes: what a token reads of them: all, but of experts only those it goes to.
        head_bytes: of the head, which is the table of embeddings too where they are tied.
        resident_bytes: all packed weights.
    """

    weights: int
    kept: int
    layer_bytes: int
    active_bytes: int
    head_bytes: int
    resident_bytes: int

    @property
    def bits_per_weight(self) -> float:
        """Of the layers, positions and scales included."""
        return 8 * self.layer_bytes / max(self.weights, 1)

    @property
    def bytes_per_token(self) -> int:
        """What generating one token reads of the weights."""
        return self.active_bytes + self.head_bytes


class TextEngine:
    """A packed decoder and what is told of it.

    Sessions hold keys and values; the engine itself can be used from several threads.

    Attributes:
        shape: its sizes.
        keys: which keys a token attends to, and what they are stored in.
        size: what it weighs.
        kernels: what its layers run on.
    """

    def __init__(
        self, native: NativeDecoder, keys: KeyRules, size: DecoderSize, kernels: list[str]
    ) -> None:
        self._native = native
        self.shape = native.shape
        self.keys = keys
        self.size = size
        self.kernels = kernels

    def session(self) -> "Session":
        """A new sequence: memory for keys and values of the whole context, or of a window."""
        return Session(self._native, self.keys)

    def with_keys(self, keys: KeyRules) -> "Self":
        """The same packed weights and the same context with other rules for keys."""
        other = copy.copy(self)
        other.keys = keys
        return other

    @property
    def key_bytes(self) -> int:
        """Bytes of keys and values of a session."""
        shape = self.shape
        return key_bytes(
            self._native.layers, shape.kv_heads, shape.head_dim, shape.context, self.keys
        )

    def logits(self, ids: TokenIds) -> "torch.Tensor":
        """Logits [T, V] behind every token of a text."""
        return _tensor(NativeSession(self._native, self.keys).step(_checked(ids), every=True))

    def stream(
        self,
        prompt: TokenIds,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stop: Collection[int] = (),
        session: "Session | None" = None,
    ) -> Iterator[int]:
        """New tokens, one by one as they are made.

        Args:
            prompt: token numbers, at least one.
            max_new_tokens: at most so many; generation ends at the end of the context, too.
            sampling: how tokens are drawn; None = the likeliest always.
            stop: tokens that end the text; they are not given.
            session: holds what was computed before; of `prompt`, only what it does not hold yet is
                run. None = a new one.
        """
        if max_new_tokens < 0:
            raise InputError(f"decoder: max_new_tokens must not be negative, got {max_new_tokens}.")
        sampler = Sampler(sampling or Sampling())
        held = self.session() if session is None else session
        logits_V = held.read(prompt)
        for number in range(max_new_tokens):
            token = sampler(logits_V)
            if token in stop:
                return
            yield token
            if number + 1 == max_new_tokens or held.length == self.shape.context:
                return
            logits_V = held.more(token)

    def generate(
        self,
        prompt: TokenIds,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        stop: Collection[int] = (),
        session: "Session | None" = None,
    ) -> list[int]:
        """The new tokens; arguments as in `stream`."""
        return list(self.stream(prompt, max_new_tokens, sampling, stop, session))


class Session:
    """One sequence: the tokens that were run, with their keys and values. One thread at a time."""

    def __init__(self, decoder: NativeDecoder, keys: KeyRules) -> None:
        self._native = NativeSession(decoder, keys)
        self._ids: list[int] = []

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self._ids)

    def prompt(self, ids: TokenIds) -> "torch.Tensor":
        """`read`, as a tensor."""
        return _tensor(self.read(ids))

    def append(self, token: int) -> "torch.Tensor":
        """`more`, as a tensor."""
        return _tensor(self.more(token))

    def read(self, ids: TokenIds) -> Logits:
        """Logits [V] behind `ids`; what the session holds of their beginning is not run again."""
        wanted = _checked(ids)
        if len(wanted) > self._native.context:
            raise InputError(
                f"decoder: the prompt has {len(wanted)} tokens, the context is"
                f" {self._native.context}. Shorten the prompt, or build the engine with a larger"
                " context."
            )
        same = self.shared(wanted.tolist())
        self._native.truncate(same)
        del self._ids[same:]
        return self._run(wanted[same:])

    def shared(self, ids: TokenIds) -> int:
        """Tokens at the beginning of `ids` that need not be run again."""
        same = 0
        # The last token is run in any case: its logits are not held.
        for old, new in zip(self._ids, list(ids)[:-1], strict=False):
            if old != new:
                break
            same += 1
        # What stood before a window may be gone.
        return same if self._native.can_truncate(same) else 0

    def more(self, token: int) -> Logits:
        """Logits [V] behind one more token."""
        return self._run(np.array([token], dtype=np.int32))

    def _run(self, ids: "np.typing.NDArray[np.int32]") -> Logits:
        logits: Logits = self._native.step(ids)[0]
        self._ids += ids.tolist()
        return logits


def _checked(ids: TokenIds) -> "np.typing.NDArray[np.int32]":
    if not isinstance(ids, Sequence) and hasattr(ids, "is_floating_point"):
        if ids.is_floating_point() or ids.dim() > 2 or (ids.dim() == 2 and len(ids) != 1):
            raise InputError(
                f"decoder: expected the token numbers of one sequence, got {ids.dtype}"
                f" {list(ids.shape)}."
            )
        ids = ids.reshape(-1).tolist()
    if not len(ids):
        raise InputError("decoder: the prompt is empty; it needs at least one token.")
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise InputError("decoder: a prompt is a list of token numbers; tokenise the text first.")
    if not all(-(2**31) <= i < 2**31 for i in ids):
        raise InputError("decoder: a token number does not fit 32 bits.")
    return np.array(ids, dtype=np.int32)


def _tensor(logits: Logits) -> "torch.Tensor":
    import torch

    return torch.from_numpy(logits)
