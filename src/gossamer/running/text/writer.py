# SPDX-License-Identifier: Apache-2.0
"""A language model with its tokenizer, as a chat and a server use it: text in, tokens out.

Tokens become text as they come (`TextPieces`): whole characters, and nothing behind a stop text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gossamer.errors import InputError
from gossamer.io.safe_files.tokenizer import guarded
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder import GenerationOptions, NativeGenerator, TokenGenerator
from gossamer.running.text.chat import ChatTemplate, end_tokens, prompt_ids
from gossamer.running.text.facts import TextFacts
from gossamer.running.text.special_tokens import TextTokens

if TYPE_CHECKING:
    from torch import nn

    from gossamer.ops.engines.decoder_session import DecoderPlan

__all__ = ["TextPieces", "Writer", "make_writer", "stored_writer"]

# Gets what was packed, and what else a writer is made of.
Keep = Callable[[NativeGenerator, "DecoderPlan", TextFacts], None]


class TextPieces:
    """Pieces that add up to the text of all tokens so far, up to a stop text.

    Args:
        tokenizer: of the package tokenizers.
        stop: the text ends before whichever of these is complete first.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = getattr(tokenizer, "inner", tokenizer)
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """What one more token makes certain; may be empty."""
        if self.stopped:
            return ""
        self._held += guarded(lambda: self._decoder.step(self._tokenizer, token)) or ""
        places = [place for text in self._stop if (place := self._held.find(text)) >= 0]
        if places:
            self.stopped = True
            return self._release(min(places))
        return self._release(len(self._held) - self._open_end())

    def rest(self) -> str:
        """What was held back because a stop text might have begun; call it at the end."""
        return "" if self.stopped else self._release(len(self._held))

    def _release(self, length: int) -> str:
        piece, self._held = self._held[:length], self._held[length:]
        return piece

    def _open_end(self) -> int:
        """Length of the longest end of what is held that begins a stop text."""
        lengths = (
            length
            for text in self._stop
            for length in range(1, min(len(text), len(self._held) + 1))
            if self._held.endswith(text[:length])
        )
        return max(lengths, default=0)


@dataclass(frozen=True)
class Writer:
    """What text generation needs.

    Attributes:
        engine: gives tokens.
        tokens: the tokenizer.
        template: sets messages as a prompt.
        ends: tokens that end a text.
    """

    engine: TokenGenerator
    tokens: TextTokens
    template: ChatTemplate
    ends: frozenset[int]

    def prompt_ids(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """Token numbers of a text to go on with.

        A special token that the text spells is text like other, unless `special_tokens`.
        """
        (ids,) = self.tokens.numbers([text], "prompt", special_tokens=special_tokens)
        return ids

    def chat_ids(
        self, messages: Sequence[Mapping[str, str]], *, special_tokens: bool = False
    ) -> list[int]:
        """Token numbers of a talk, up to where the assistant speaks.

        The template sets special tokens; those that messages spell are text, unless
        `special_tokens`.
        """
        ids = prompt_ids(
            self.template, self.tokens.special, messages, special_tokens=special_tokens
        )
        self.tokens.check(ids, "messages")
        return list(ids)

    def room(self, ids: Sequence[int]) -> int:
        """Tokens that may follow; InputError if there is no place for one."""
        left = self.engine.context - len(ids)
        if left < 1:
            raise InputError(
                f"prompt: has {len(ids)} tokens, and the context of {self.engine.context} leaves no"
                " room for an answer. Shorten the prompt, or use a larger context."
            )
        return left

    def tokens_behind(self, ids: Sequence[int], options: GenerationOptions) -> Iterator[int]:
        """New tokens, as many as were asked for and there is room for."""
        self.room(ids)
        return self.engine.generate(ids, options)

    def pieces(self, stop: Sequence[str] = ()) -> TextPieces:
        """Turns new tokens into text."""
        return TextPieces(self.tokens.tokenizer, stop)


def make_writer(
    model: "nn.Module",
    beside: Mapping[str, bytes],
    *,
    precision: str,
    head_dtype: str | None = None,
    context: int | None = None,
    keys: KeyRules | None = None,
    keep: Keep | None = None,
) -> Writer:
    """Pack or compile `model`, which is used up.

    Args:
        model: of transformers; gives logits of the next token.
        beside: files beside its weights, by name; tokenizer.json is needed.
        precision: the lowest one that kernels may store weights and compute in.
        head_dtype: the same for embeddings and head of the native decoder.
        context: the most tokens of a text, prompt included; None: as the engine chooses.
        keys: which keys a token of the native decoder attends to, and what they are stored in.
        keep: gets the native decoder, to be stored; see `stored_writer`.
    """
    from gossamer.running.decoder import make_generator

    facts = TextFacts.of(model.config)
    tokens, template = TextTokens(beside, facts), ChatTemplate(beside)
    ends = end_tokens(beside, facts, tokens.tokenizer)
    engine = make_generator(
        model,
        precision,
        head_dtype=head_dtype,
        context=context,
        keys=keys,
        keep=None if keep is None else lambda made, plan: keep(made, plan, facts),
    )
    return Writer(engine, tokens, template, ends)


def stored_writer(engine: TokenGenerator, facts: TextFacts, beside: Mapping[str, bytes]) -> Writer:
    """The writer of an engine that was packed before; needs neither torch nor transformers."""
    tokens = TextTokens(beside, facts)
    ends = end_tokens(beside, facts, tokens.tokenizer)
    return Writer(engine, tokens, ChatTemplate(beside), ends)
