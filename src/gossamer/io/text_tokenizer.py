# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a language model from its files: text to tokens and back, chats to text.

A chat template is a Jinja program from the file. It runs in Jinja's sandbox, which gives it its
arguments and nothing else: no attributes that lead out, no imports, no files.
"""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gossamer.errors import ArtifactError, InputError
from gossamer.io.limits import MAX_MANIFEST_BYTES
from gossamer.io.samples import TOKENIZER_FILE, make_tokenizer
from gossamer.io.strict_json import parse_json

CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
_MAX_CHAT_CHARACTERS = 10_000_000


class TextTokenizer:
    """Reads and writes the text of one model.

    Args:
        files: contents by name, as `gossamer.io.read_beside` gives them.
        where: what they come from, for messages.
    """

    def __init__(self, files: Mapping[str, bytes], where: str) -> None:
        self._where = where
        self._tokenizer = make_tokenizer(files.get(TOKENIZER_FILE))
        raw = files.get(CONFIG_FILE, b"{}")
        config = parse_json(raw, f"{where}: {CONFIG_FILE}", max_bytes=MAX_MANIFEST_BYTES)
        if not isinstance(config, dict):
            raise ArtifactError(f"{where}: {CONFIG_FILE} must be a JSON object.")
        self._names = {key: _token(config.get(key)) for key in ("bos_token", "eos_token")}
        template = config.get("chat_template")
        if TEMPLATE_FILE in files:
            template = files[TEMPLATE_FILE].decode("utf-8", "replace")
        self._template = template if isinstance(template, str) else None

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens behind which nothing comes."""
        end = self._names["eos_token"]
        number = None if end is None else self._tokenizer.token_to_id(end)
        return () if number is None else (number,)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token numbers; with `special`, the text holds its special tokens already."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=not special).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(list(ids))
        return text

    def decoder(self) -> Callable[[int], str]:
        """Token by token to pieces of text; characters of several tokens come with the last one."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        return lambda token: stream.step(self._tokenizer, token) or ""

    def chat(self, turns: Sequence[Mapping[str, str]]) -> str:
        """A talk as the model was taught to read it, up to where the assistant speaks."""
        if self._template is None:
            raise InputError(
                f"{self._where}: has no chat template, so it cannot be talked to. Use"
                " `gossamer run complete`, or a model that was tuned for chats."
            )
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        given: dict[str, Any] = {
            "messages": [dict(turn) for turn in turns],
            "add_generation_prompt": True,
            "raise_exception": refuse,
            "strftime_now": lambda form: datetime.datetime.now().strftime(form),
            **{name: text or "" for name, text in self._names.items()},
        }
        try:
            text = environment.from_string(self._template).render(given)
        except TemplateError as error:
            raise InputError(
                f"{self._where}: its chat template refuses this talk ({ascii(str(error))[:200]})."
            ) from error
        if len(text) > _MAX_CHAT_CHARACTERS:
            raise InputError(f"{self._where}: its chat template makes {len(text)} characters.")
        return text


def _token(entry: object) -> str | None:
    """A special token as files write it: its text, or an object with it."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None
