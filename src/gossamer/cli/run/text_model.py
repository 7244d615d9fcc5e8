# SPDX-License-Identifier: Apache-2.0
"""A language model named on the command line: text in, pieces of text and figures out."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from gossamer.cli.models import load_source
from gossamer.errors import ArtifactError
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE
from gossamer.running.decoder import GenerationOptions, NativeGenerator, Sampling
from gossamer.running.text import Writer, make_writer


class TextModel:
    """A writer, how it draws, and what was measured last."""

    def __init__(
        self, writer: Writer, sampling: Sampling, max_tokens: int, special_tokens: bool = False
    ) -> None:
        self._writer = writer
        self._special_tokens = special_tokens
        self._options = GenerationOptions(max_tokens, sampling, writer.ends)
        self._last: dict[str, float] = {}

    @classmethod
    def open(  # noqa: PLR0913  (one argument per option of the commands)
        cls,
        model: str,
        sampling: Sampling,
        *,
        dtype: str,
        head_dtype: str | None,
        context: int | None,
        max_tokens: int,
        special_tokens: bool,
        threads: int | None,
        say: Callable[[str], None],
    ) -> "TextModel":
        """The model that `model` names, packed."""
        if threads is not None:
            torch.set_num_threads(threads)
        source = load_source(model, say=say)
        if TOKENIZER_FILE not in source.beside:
            raise ArtifactError(
                f"{model}: has no tokenizer beside its weights, so text cannot be read. Put its"
                f" {TOKENIZER_FILE} and tokenizer_config.json there."
            )
        writer = make_writer(
            source.model, source.beside, precision=dtype, head_dtype=head_dtype, context=context
        )
        return cls(writer, sampling, max_tokens, special_tokens)

    @property
    def summary(self) -> str:
        """Bytes and kernels in one line."""
        engine = self._writer.engine
        if not isinstance(engine, NativeGenerator):
            return "not a model of the native decoder: runs layer by layer in transformers"
        size = engine.engine.size
        return (
            f"{size.kept / size.weights:.0%} of {size.weights / 1e6:.1f} M weights kept,"
            f" {size.bits_per_weight:.2f} bits per weight, {size.bytes_per_token / 1e6:.1f} MB read"
            f" per token, kernels {', '.join(engine.engine.kernels)}"
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
        engine = self._writer.engine
        if not isinstance(engine, NativeGenerator):
            return {**self._last}
        size = engine.engine.size
        return {
            "bits_per_weight": size.bits_per_weight,
            "bytes_per_token": size.bytes_per_token,
            "resident_bytes": size.resident_bytes,
            "kernels": engine.engine.kernels,
            **self._last,
        }

    def complete(self, text: str) -> Iterator[str]:
        """What follows `text`."""
        return self._run(self._writer.prompt_ids(text, special_tokens=self._special_tokens))

    def answer(self, turns: Sequence[Mapping[str, str]]) -> Iterator[str]:
        """The next turn of the assistant."""
        return self._run(self._writer.chat_ids(turns, special_tokens=self._special_tokens))

    def _run(self, ids: list[int]) -> Iterator[str]:
        start = time.perf_counter()
        first, count = start, 0
        pieces = self._writer.pieces()
        for token in self._writer.tokens_behind(ids, self._options):
            if not count:
                first = time.perf_counter()
            count += 1
            yield pieces.add(token)
        end = time.perf_counter()
        # The first token comes out of the prompt.
        rate = (count - 1) / (end - first) if count > 1 else 0.0
        self._last = {
            "prompt_tokens": len(ids),
            "prompt_seconds": (first if count else end) - start,
            "new_tokens": count,
            "tokens_per_second": rate,
        }
