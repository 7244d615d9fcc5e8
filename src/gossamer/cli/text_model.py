# SPDX-License-Identifier: Apache-2.0
"""A language model with its tokenizer: text in, pieces of text out."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from gossamer.cli.sources import load_source
from gossamer.errors import ArtifactError, InputError
from gossamer.io.text_tokenizer import TextTokenizer
from gossamer.run.decoder import DecoderEngine
from gossamer.run.sampling import Sampling

# More than most talks need; keys and values of all of it are held.
DEFAULT_CONTEXT = 2048


class TextModel:
    """An engine, a tokenizer and one sequence that goes on."""

    def __init__(
        self,
        engine: DecoderEngine,
        tokenizer: TextTokenizer,
        sampling: Sampling,
        max_tokens: int,
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._session = engine.session()
        self._last: dict[str, float] = {}

    @classmethod
    def open(
        cls,
        model: str,
        sampling: Sampling,
        *,
        dtype: str,
        head_dtype: str | None,
        context: int | None,
        max_tokens: int,
        threads: int | None,
    ) -> "TextModel":
        """The model that `model` names on the command line, packed."""
        if threads is not None:
            torch.set_num_threads(threads)
        source = load_source(model)
        if not source.beside:
            raise ArtifactError(
                f"{model}: has no tokenizer beside its weights, so text cannot be read. Put its"
                " tokenizer.json and tokenizer_config.json there."
            )
        tokenizer = TextTokenizer(source.beside, model)
        most = getattr(getattr(source.model, "config", None), "max_position_embeddings", None)
        if context is None and isinstance(most, int):
            context = min(DEFAULT_CONTEXT, most)
        engine = DecoderEngine(source.model, dtype, head_dtype=head_dtype, context=context)
        return cls(engine, tokenizer, sampling, max_tokens)

    @property
    def summary(self) -> str:
        """Bytes and kernels in one line."""
        size = self._engine.size
        return (
            f"{size.kept / size.weights:.0%} of {size.weights / 1e6:.1f} M weights kept,"
            f" {size.bits_per_weight:.2f} bits per weight, {size.bytes_per_token / 1e6:.1f} MB read"
            f" per token, kernels {', '.join(self._engine.kernels)}"
        )

    @property
    def speed(self) -> str:
        """Of the last text, in one line."""
        last = self._last
        return (
            f"[prompt {last['prompt_tokens']:.0f} tokens in {last['prompt_seconds']:.2f} s;"
            f" {last['new_tokens']:.0f} new tokens, {last['tokens_per_second']:.1f} per second]"
        )

    def measured(self) -> dict[str, Any]:
        """For --json."""
        size = self._engine.size
        return {
            "bits_per_weight": size.bits_per_weight,
            "bytes_per_token": size.bytes_per_token,
            "resident_bytes": size.resident_bytes,
            "cache_bytes": self._session.nbytes,
            "kernels": self._engine.kernels,
            **self._last,
        }

    def complete(self, text: str) -> Iterator[str]:
        """What follows `text`."""
        return self._run(self._tokenizer.encode(text))

    def answer(self, turns: Sequence[dict[str, str]]) -> Iterator[str]:
        """The next turn of the assistant."""
        return self._run(self._tokenizer.encode(self._tokenizer.chat(turns), special=True))

    def _run(self, ids: list[int]) -> Iterator[str]:
        if not ids:
            raise InputError("the prompt is empty; it needs at least one token.")
        start = time.perf_counter()
        first = start
        tokens: list[int] = []
        decode = self._tokenizer.decoder()
        stream = self._engine.stream(
            ids,
            self._max_tokens,
            self._sampling,
            stop=self._tokenizer.ends,
            session=self._session,
        )
        for token in stream:
            if not tokens:
                first = time.perf_counter()
            tokens.append(token)
            yield decode(token)
        end = time.perf_counter()
        # The first token comes out of the prompt.
        rate = (len(tokens) - 1) / (end - first) if len(tokens) > 1 else 0.0
        self._last = {
            "prompt_tokens": len(ids),
            "prompt_seconds": (first if tokens else end) - start,
            "new_tokens": len(tokens),
            "tokens_per_second": rate,
        }
