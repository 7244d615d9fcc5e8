# SPDX-License-Identifier: Apache-2.0
"""The engine that generates the text of a model: the native decoder, or transformers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError, TargetError
from gossamer.nn.families.text import DECODER_HEADS, is_decoder, num_positions
from gossamer.nn.streamed import StreamedModel
from gossamer.ops.engines.decoder_session import DecoderPlan
from gossamer.ops.fallback import report_fallback
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder.engine import DecoderEngine
from gossamer.running.decoder.generation import GenerationOptions, NativeGenerator, TokenGenerator
from gossamer.running.decoder.sampling import Sampler
from gossamer.running.layers import compile as compile_model

# Keys and values of a session are held for all of it.
_NATIVE_CONTEXT = 2048


def make_generator(
    model: nn.Module,
    precision: str = "fp32",
    *,
    head_dtype: str | None = None,
    context: int | None = None,
    keys: KeyRules | None = None,
    keep: Callable[[NativeGenerator, DecoderPlan], None] | None = None,
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
        keep: gets the native decoder and everything that was packed, to be stored.
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
        plans: list[DecoderPlan] = []
        made = NativeGenerator(
            DecoderEngine(
                model,
                precision,
                head_dtype=head_dtype,
                context=native,
                keys=keys,
                keep=plans.append if keep else None,
            )
        )
    except (InputError, TargetError) as reason:
        if isinstance(model, StreamedModel):
            raise  # nobody else can run it
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
    if keep is not None:
        keep(made, plans[0])
    return made


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
