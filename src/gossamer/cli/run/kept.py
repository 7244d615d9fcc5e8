# SPDX-License-Identifier: Apache-2.0
"""A model for text, from the cache of packed engines if it was packed before.

Neither torch nor transformers is imported where it was: they take longer than everything else.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gossamer.cli.places import source_path
from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder import StoredDecoder, store_decoder
from gossamer.running.store import EngineStore, Identity, files_digest
from gossamer.running.text.facts import TextFacts
from gossamer.running.text.writer import Writer, make_writer, stored_writer

if TYPE_CHECKING:
    from torch import nn

    from gossamer.ops.engines.decoder_session import DecoderPlan
    from gossamer.running.decoder import NativeGenerator


def kept_writer(
    model: str, keys: KeyRules, asked: dict[str, Any], say: Callable[[str], None]
) -> Writer:
    """The writer of the model that `model` names.

    Args:
        model: as on the command line.
        keys: which keys a token attends to.
        asked: the other arguments of `make_writer`.
        say: gets lines for people, those of the first start again at every other one.
    """
    store, identity = EngineStore(say), _identity(model, keys, asked)
    found = None if identity is None else StoredDecoder.find(store, identity, keys)
    if found is not None:
        for line in found.told["lines"]:
            say(line)
        return stored_writer(found.engine, TextFacts(**found.told["tokens"]), found.files)

    lines: list[str] = []

    def packed(module: "nn.Module", beside: dict[str, bytes]) -> Writer:
        if TOKENIZER_FILE not in beside:
            raise ArtifactError(
                f"{model}: has no tokenizer beside its weights, so text cannot be read. Put its"
                f" {TOKENIZER_FILE} and tokenizer_config.json there."
            )

        def keep(made: "NativeGenerator", plan: "DecoderPlan", facts: TextFacts) -> None:
            # Files may have changed while they were read.
            if identity is not None and identity == _identity(model, keys, asked):
                more = {"tokens": asdict(facts), "lines": lines}
                store_decoder(store, identity, made, plan, more, beside)

        return make_writer(module, beside, keys=keys, keep=keep, **asked)

    if identity is not None:
        from gossamer.io.streaming import stream

        # What is refused here is loaded as a whole: that runs it otherwise, or says why not.
        with suppress(ArtifactError, InputError), stream(source_path(model)) as streamed:
            if streamed is not None:
                return packed(streamed.model, streamed.beside)

    from gossamer.cli.models import load_source

    source = load_source(model, say=lines.append)
    for line in lines:
        say(line)
    return packed(source.model, source.beside)


def _identity(model: str, keys: KeyRules, asked: dict[str, Any]) -> Identity | None:
    """What a packed engine of these files holds for; None where there are no files."""
    path = source_path(model)
    files = files_digest(path) if path.exists() else None
    return None if files is None else Identity(files, {**asked, "keys": asdict(keys)})
