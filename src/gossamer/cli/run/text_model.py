# SPDX-License-Identifier: Apache-2.0
"""A language model named on the command line: text in, pieces of text and figures out."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gossamer.cli.run.kept import kept_writer
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder import GenerationOptions, NativeGenerator, Sampling
from gossamer.running.text import Writer


@dataclass
class TextModel:
    """A writer, how it draws, whether it reads special tokens, and what was measured last."""

    writer: Writer
    options: GenerationOptions
    special_tokens: bool
    last: dict[str, float] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Bytes and kernels in one line."""
        engine = self.writer.engine
        if not isinstance(engine, NativeGenerator):
            return "not a model of the native decoder: runs layer by layer in transformers"
        size = engine.engine.size
        return (
            f"{size.kept / size.weights:.0%} of {size.weights / 1e6:.1f} M weights kept,"
            f" {size.bits_per_weight:.2f} bits per weight, {size.bytes_per_token / 1e6:.1f} MB read"
            f" per token, {engine.engine.key_bytes / 1e6:.1f} MB of keys and values"
            f" ({engine.engine.keys.dtype}, attention {engine.engine.keys}),"
            f" kernels {', '.join(engine.engine.kernels)}"
        )

    @property
    def speed(self) -> str:
        """Of the last text, in one line."""
        last = self.last
        return (
            f"[prompt {last['prompt_tokens']:.0f} tokens in {last['prompt_seconds']:.2f} s;"
            f" {last['new_tokens']:.0f} new tokens, {last['tokens_per_second']:.1f} per second]"
        )

    def measured(self) -> dict[str, Any]:
        """For --json."""
        engine = self.writer.engine
        if not isinstance(engine, NativeGenerator):
            return self.last
        size = engine.engine.size
        return {
            "bits_per_weight": size.bits_per_weight,
            "bytes_per_token": size.bytes_per_token,
            "resident_bytes": size.resident_bytes,
            "key_bytes": engine.engine.key_bytes,
            "keys": engine.engine.keys.dtype,
            "attention": str(engine.engine.keys),
            "kernels": engine.engine.kernels,
            **self.last,
        }

    def run(self, ids: list[int]) -> Iterator[str]:
        """What follows the tokens, piece by piece."""
        start = time.perf_counter()
        first, count = start, 0
        pieces = self.writer.pieces()
        for token in self.writer.tokens_behind(ids, self.options):
            if not count:
                first = time.perf_counter()
            count += 1
            yield pieces.add(token)
        end = time.perf_counter()
        self.last = {
            "prompt_tokens": len(ids),
            "prompt_seconds": (first if count else end) - start,
            "new_tokens": count,
            # The first token comes out of the prompt.
            "tokens_per_second": (count - 1) / (end - first) if count > 1 else 0.0,
        }


def open_model(
    model: str,
    *,
    dtype: str,
    head_dtype: str | None,
    context: int | None,
    keys: KeyRules,
    max_tokens: int,
    special_tokens: bool,
    say: Callable[[str], None],
    **sampling: Any,
) -> TextModel:
    """The model that `model` names, packed; `sampling` says how it draws."""
    drawn = Sampling(**sampling)
    asked = {"precision": dtype, "head_dtype": head_dtype, "context": context}
    writer = kept_writer(model, keys, asked, say)
    return TextModel(writer, GenerationOptions(max_tokens, drawn, writer.ends), special_tokens)
