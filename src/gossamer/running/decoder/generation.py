# SPDX-License-Identifier: Apache-2.0
"""New tokens behind a prompt, one by one: what a server or a chat needs from an engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.families.text import DECODER_HEADS, is_decoder, num_positions
from gossamer.ops.fallback import report_fallback
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder.engine import DecoderEngine, Session
from gossamer.running.decoder.sampling import Sampler, Sampling
from gossamer.running.layers import compile as compile_model

# Keys and values of a session are held for all of it.
_NATIVE_CONTEXT = 2048
_MAX_FREE_SESSIONS = 4
# Tokens of a prompt that run before other texts have a turn.
_PROMPT_PART = 256
# A text that shares so many tokens with one that is done goes on with its keys.
_WORTH_SHARING = 16


@dataclass(frozen=True)
class GenerationOptions:
    """How a text goes on.

    Attributes:
        max_new_tokens: at most so many.
        sampling: how tokens are drawn; the likeliest always unless told otherwise.
        stop: tokens that end the text; they are not given.
    """

    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: frozenset[int] = frozenset()


class TokenGenerator(Protocol):
    """An engine. Iterators of several texts may be advanced in turns, by one thread."""

    @property
    def context(self) -> int:
        """The most tokens of a text, prompt included."""

    def generate(self, ids: Sequence[int], options: GenerationOptions) -> Iterator[int]:
        """New tokens behind `ids`; work is done when the next one is asked for."""

    def turns(self, ids: Sequence[int], options: GenerationOptions) -> Iterator[int | None]:
        """The same in smaller pieces of work: None where a part of the prompt was run."""


def make_generator(
    model: nn.Module,
    precision: str = "fp32",
    *,
    head_dtype: str | None = None,
    context: int | None = None,
    keys: KeyRules | None = None,
) -> TokenGenerator:
    """The engine for `model`: the one place where it is chosen.

    Models of families that the native decoder knows run in one native call per token; any other
    one is compiled in place, layer by layer.

    Args:
        model: gives logits of the next token.
        precision: the lowest one that kernels may store weights and compute in.
        head_dtype: the same for embeddings and head of the native decoder; None: `precision`, but
            not below int8.
        context: the most tokens of a text; None: what the model can read, of the native decoder at
            most 2048, since keys and values of all of it are held.
        keys: which keys a token attends to and what they are stored in; None: all, in fp32. Only
            the native decoder has others, so InputError where it cannot run.
    """
    if not is_decoder(model):
        raise InputError(
            f"{type(model).__name__}: generates no text; expected a model that ends with"
            f" {' or '.join(DECODER_HEADS)}."
        )
    most = num_positions(model.config)
    is_bounded = keys is not None and 0 < keys.reach <= most
    if context is not None and not 1 <= context <= (context if is_bounded else most):
        raise InputError(
            f"context must be between 1 and the {most} positions of this model, got {context}."
        )
    try:
        native = min(most, _NATIVE_CONTEXT) if context is None else context
        return NativeGenerator(
            DecoderEngine(model, precision, head_dtype=head_dtype, context=native, keys=keys)
        )
    except (InputError, TargetError) as reason:
        if keys is not None and keys != KeyRules():
            raise InputError(
                f"attention '{keys}' with keys in {keys.dtype} needs the native decoder: {reason}"
            ) from reason
        report_fallback(type(model).__name__, f"generates layer by layer: {reason}")
        fast = compile_model(
            model,
            inplace=True,
            precision=precision,
            example={"input_ids": torch.zeros(1, 2, dtype=torch.int64)},
        )
        return TransformersGenerator(fast, most if context is None else context)


class NativeGenerator:
    """The native decoder; sessions hold keys and values and are used again when a text is done."""

    def __init__(self, engine: DecoderEngine) -> None:
        self.engine = engine
        self._free: list[Session] = []
        self.context = engine.shape.context

    def generate(self, ids: Sequence[int], options: GenerationOptions) -> Iterator[int]:
        """New tokens behind `ids`, at most up to the end of the context."""
        return (token for token in self.turns(ids, options) if token is not None)

    def turns(self, ids: Sequence[int], options: GenerationOptions) -> Iterator[int | None]:
        """The same; None after each part of a long prompt."""
        room = min(options.max_new_tokens, self.context - len(ids))
        if room <= 0:
            return
        session = self._take(ids)
        try:
            done = session.shared(ids) + _PROMPT_PART
            while done < len(ids):
                session.prompt(ids[:done])
                yield None
                done += _PROMPT_PART
            yield from self.engine.stream(ids, room, options.sampling, options.stop, session)
        finally:
            if len(self._free) < _MAX_FREE_SESSIONS:
                self._free.append(session)

    def _take(self, ids: Sequence[int]) -> Session:
        """The free session that shares the longest prefix; a new one while they are few."""
        best = max(self._free, key=lambda session: session.shared(ids), default=None)
        if best is None or (
            best.shared(ids) < min(_WORTH_SHARING, len(ids) - 1)
            and len(self._free) < _MAX_FREE_SESSIONS
        ):
            return self.engine.session()
        self._free.remove(best)
        return best


@dataclass(frozen=True)
class TransformersGenerator:
    """Any causal model of transformers, compiled or not, with its own cache of keys and values."""

    model: nn.Module
    context: int

    def generate(self, ids: Sequence[int], options: GenerationOptions) -> Iterator[int]:
        """New tokens behind `ids`, at most up to the end of the context."""
        draw = Sampler(options.sampling)
        cache: Any = None
        pending = list(ids)
        for _ in range(min(options.max_new_tokens, self.context - len(ids))):
            # Not around the yield: the mode would hold for whoever asks for tokens.
            with torch.inference_mode():
                output: Any = self.model(
                    input_ids=torch.tensor([pending]),
                    past_key_values=cache,
                    use_cache=True,
                    # Of a long prompt, logits of the last token alone.
                    logits_to_keep=1,
                )
                token = draw(output.logits[0, -1].float())
            cache = output.past_key_values
            if token in options.stop:
                return
            yield token
            pending = [token]

    def turns(self, ids: Sequence[int], options: GenerationOptions) -> Iterator[int | None]:
        """The same: a prompt is one piece."""
        return self.generate(ids, options)
