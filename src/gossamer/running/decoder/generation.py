# SPDX-License-Identifier: Apache-2.0
"""New tokens behind a prompt, one by one: what a server or a chat needs from an engine.

Free of torch: a stored engine needs none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gossamer.running.decoder.sampling import Sampling
from gossamer.running.decoder.session import Session, TextEngine

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


class NativeGenerator:
    """The native decoder; sessions hold keys and values and are used again when a text is done."""

    def __init__(self, engine: TextEngine) -> None:
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
