# SPDX-License-Identifier: Apache-2.0
"""What the files beside a chat model say about text: how messages are set, where answers end.

A chat template is a program of the jinja language. It runs in jinja's sandbox, which reaches
neither files nor Python, inside a process with bounded time and memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files import MAX_MANIFEST_BYTES
from gossamer.io.safe_files.documents import parse_json
from gossamer.running.text.template_process import Conversation, TemplateProcess

_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_GENERATION = "generation_config.json"


class ChatTemplate:
    """Messages as one prompt, the way a model was trained on them.

    Args:
        beside: files beside the weights, by name.
        process: where templates run.
    """

    def __init__(self, beside: Mapping[str, bytes], process: TemplateProcess | None = None) -> None:
        config = _read(beside, _CONFIG)
        self._tokens = _special_tokens(config)
        self._template = _template(beside, config)
        self._process = process or TemplateProcess()

    def __bool__(self) -> bool:
        return self._template is not None

    def render(self, messages: Conversation) -> str:
        """The prompt whose continuation is the answer.

        Raises:
            InputError: there is no template, it refuses, or needs too much memory.
            TemplateTooSlow: it takes too long.
        """
        return self.render_all([messages])[0]

    def render_all(self, conversations: Sequence[Conversation]) -> list[str]:
        """The same for several, in one go."""
        if self._template is None:
            raise InputError(
                "messages: this model has no chat template. Let it complete a prompt instead, or"
                f" put a {_TEMPLATE} beside the model."
            )
        texts = self._process.render(self._template, conversations, self._tokens)
        for text in texts:
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InputError(
                    "messages: the chat template of this model makes half of a surrogate pair of"
                    f" them, at character {error.start}; expected Unicode text."
                ) from None
        return texts


def end_tokens(beside: Mapping[str, bytes], config: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end an answer.

    What generation_config.json says, or else config.json; and the end that the tokenizer names,
    which is the one of a turn in models that were tuned for chats.
    """
    found = _read(beside, _GENERATION).get("eos_token_id", getattr(config, "eos_token_id", None))
    numbers = list(found) if isinstance(found, list) else [found]
    end = _special_tokens(_read(beside, _CONFIG)).get("eos_token")
    numbers.append(None if end is None else tokenizer.token_to_id(end))
    return frozenset(number for number in numbers if type(number) is int)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """By name; files write their text, or an object with it."""
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token")
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _template(beside: Mapping[str, bytes], config: Mapping[str, Any]) -> str | None:
    if _TEMPLATE in beside:
        return beside[_TEMPLATE].decode("utf-8", "replace")
    found = config.get("chat_template")
    if found is None or isinstance(found, str):
        return found
    named = found if isinstance(found, list) else [found]
    for item in named:
        parts = [item.get(key) for key in ("name", "template")] if isinstance(item, dict) else [0]
        if not all(isinstance(part, str) for part in parts):
            raise ArtifactError(
                f"{_CONFIG}: chat_template holds {ascii(item)[:60]}; expected a text, or a list of"
                f' {{"name": "default", "template": "..."}}. Put a {_TEMPLATE} beside the model.'
            )
    return next((item["template"] for item in named if item["name"] == "default"), None)


def _read(beside: Mapping[str, bytes], name: str) -> dict[str, Any]:
    content = parse_json(beside.get(name, b"{}"), name, max_bytes=MAX_MANIFEST_BYTES)
    if not isinstance(content, dict):
        raise ArtifactError(f"{name}: must be a JSON object.")
    return content
