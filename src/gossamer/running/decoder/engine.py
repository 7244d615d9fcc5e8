# SPDX-License-Identifier: Apache-2.0
"""Text generation with a pruned decoder: packed once, one native call per token.

Legend: T tokens, V vocabulary, R rows (outputs), K columns (inputs).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.ops.engines.decoder import (
    DecoderBlock,
    NativeDecoder,
    NativeSession,
    PackedLayer,
    key_bytes,
)
from gossamer.ops.linear import few
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder.features import DecoderFeatures
from gossamer.running.decoder.sampling import Sampler, Sampling
from gossamer.running.decoder.weights import WeightPacker, joined
from gossamer.running.layers import Explanation

# The token numbers of one sequence.
TokenIds = Sequence[int] | torch.Tensor


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


class DecoderEngine:
    """A decoder of transformers, packed for generation on the CPU: docs/reference/models.md.

    `kernels` names what the layers run on: the layout with the fewest bytes, or a plug-in that
    gives a `PackedWeight` and measures faster for one token.

    Weights are copies: the model may be freed or changed afterwards. Sessions hold keys and values;
    the engine itself can be used from several threads.

    Args:
        model: with masked, compact or dense layers.
        dtype: what weights of the layers are stored in: "fp32", "bf16", "int8" or "int4". The last
            two run in integers where the CPU can, activations quantised to 8 bits in every call.
            int4 layers whose weights are on a grid with offsets, as those of a Q4_1 file, lose
            nothing.
        head_dtype: the same for embeddings and head; None = `dtype`, but not below int8.
        context: the most tokens of a sequence; None = what the model was made for.
        scale_group: kept int4 values that share a scale.
        keys: which keys a token attends to and what they are stored in; None = all, in fp32. With a
            window, the context may be longer than the model's positions.
        active_neurons: hold the feed-forward parts a second time, neuron by neuron, and compute
            those of one token from the neurons that are active: for models with ReLU (`relufy`).
            Rows are of `dtype`; int4 has int8 ones.
        prompt_copy: for fp32 and bf16: hold pruned layers a second time in the layout that is
            faster for prompts.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: str = "int8",
        *,
        head_dtype: str | None = None,
        context: int | None = None,
        scale_group: int = 32,
        prompt_copy: bool = True,
        keys: KeyRules | None = None,
        active_neurons: bool = False,
    ) -> None:
        for name in (dtype, dtype if head_dtype is None else head_dtype):
            if name not in few.DTYPES:
                raise InputError(
                    f"decoder: dtype must be one of {', '.join(few.DTYPES)}, got {name!r}."
                )
        self.keys = keys or KeyRules()
        features = DecoderFeatures(model, context, self.keys.reach)
        self.shape = features.shape
        self.dtype = dtype
        self.head_dtype = head_dtype or ("int8" if dtype == "int4" else dtype)
        pack = WeightPacker(dtype, scale_group, prompt_copy)
        pack_table = WeightPacker(self.head_dtype, scale_group, prompt_copy=False, reads_rows=True)
        chain = features.facts.chain
        outside: list[Any] = [model.get_submodule(n) for n in (chain.front[0], *chain.back)]
        embedding, norm, lm_head = outside
        table = head = pack_table(joined([embedding], chain.front[0]))
        if lm_head.weight is not embedding.weight or lm_head.bias is not None:
            head = pack_table(joined([lm_head], chain.back[-1]))
        blocks = [_block(features, number, pack) for number in range(len(features.layers))]
        if active_neurons:
            rows = "int8" if dtype == "int4" else dtype
            blocks = [replace(b, neurons=features.neurons(n, rows)) for n, b in enumerate(blocks)]
        self._native = NativeDecoder(
            self.shape,
            table.few,
            blocks,
            features.norm(norm),
            head,
            features.rotations,
            features.positions,
            features.rules,
        )
        self._layers = len(blocks)
        linears = [linear for block in blocks for linear in block.linears]
        tables = [table] if head is table else [table, head]
        # Every product of a token, in the order in which it runs.
        self._products = [*linears, head]
        self.size = DecoderSize(
            weights=sum(linear.few.shape[0] * linear.few.shape[1] for linear in linears),
            kept=sum(linear.few.nnz for linear in linears),
            layer_bytes=sum(linear.nbytes for linear in linears),
            active_bytes=sum(block.token_bytes for block in blocks),
            head_bytes=head.nbytes,
            resident_bytes=sum(part.resident_bytes for part in (*linears, *tables))
            + sum(block.neurons.nbytes for block in blocks if block.neurons is not None),
        )
        self.kernels = sorted({linear.few.kernel for linear in linears})
        self._rows = Explanation([*pack_table.rows, *pack.rows])

    def explained(self) -> Explanation:
        """What runs each weight for one token, and why: what `gossamer.explain(engine)` gives."""
        return self._rows

    def session(self) -> "Session":
        """A new sequence: memory for keys and values of the whole context, or of a window."""
        return Session(self._native, self.keys)

    @property
    def key_bytes(self) -> int:
        """Bytes of keys and values of a session."""
        shape = self.shape
        return key_bytes(self._layers, shape.kv_heads, shape.head_dim, shape.context, self.keys)

    def logits(self, ids: TokenIds) -> torch.Tensor:
        """Logits [T, V] behind every token of a text."""
        return NativeSession(self._native, self.keys).step(_checked(ids), every=True)

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
        logits_V = held.prompt(prompt)
        for number in range(max_new_tokens):
            token = sampler(logits_V)
            if token in stop:
                return
            yield token
            if number + 1 == max_new_tokens or held.length == self.shape.context:
                return
            logits_V = held.append(token)

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

    def prompt(self, ids: TokenIds) -> torch.Tensor:
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

    def append(self, token: int) -> torch.Tensor:
        """Logits [V] behind one more token."""
        return self._run(np.array([token], dtype=np.int32))

    def _run(self, ids: "np.typing.NDArray[np.int32]") -> torch.Tensor:
        logits = self._native.step(ids)[0]
        self._ids += ids.tolist()
        return logits


def _block(features: DecoderFeatures, number: int, pack: WeightPacker) -> DecoderBlock:
    parts, layer = features.facts.block, features.layers[number]
    where = f"{features.facts.chain.layers}.{number}"

    def packed(place: str, *names: str) -> PackedLayer:
        return pack(joined([layer.get_submodule(name) for name in names], f"{where}.{place}"))

    mixture = features.mixtures[number]
    inside = parts.down.rpartition(".")[0] or " + ".join(parts.expansions)
    return DecoderBlock(
        qkv=packed(parts.attention, *parts.projections),
        out=packed(parts.output, parts.output),
        gate_up=packed(inside, *parts.expansions) if mixture is None else None,
        down=packed(parts.down, parts.down) if mixture is None else None,
        experts=None if mixture is None else mixture.packed(pack),
        norms=features.norms(layer),
        rotation=features.rotation(layer),
        window=features.windows[number],
        scale=features.scales[number],
        cut=features.cut(number),
    )


def _checked(ids: TokenIds) -> "np.typing.NDArray[np.int32]":
    if isinstance(ids, torch.Tensor):
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
