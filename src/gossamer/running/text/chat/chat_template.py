# SPDX-License-Identifier: Apache-2.0
"""What the files beside a chat model say about text: how messages are set, where answers end.

A chat template is a program of the jinja language. It runs in jinja's sandbox, which reaches
neither files nor Python, inside a process with bounded time and memory.

In a prompt, special tokens of the template are tokens, those of messages are text. A template may
do anything with a message, so where a special token of the prompt came from cannot be seen in the
prompt. It is seen by setting the messages a second time, with private characters in the place of
those that begin or end special tokens: what is still special was set by the template.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files.documents import parse_object
from gossamer.running.text.chat.template_process import Conversation, TemplateProcess
from gossamer.running.text.special_tokens import (
    FIRST_STAND_IN,
    LAST_PRIVATE,
    SpecialTokens,
    cannot_spell,
    refuse_private,
)

_CONFIG = "tokenizer_config.json"
_TEMPLATE = "chat_template.jinja"
_GENERATION = "generation_config.json"
_WHERE = "messages"
# The upper half of the block in which stand-ins are the lower one.
_FIRST_LETTER = FIRST_STAND_IN + (LAST_PRIVATE - FIRST_STAND_IN >> 1)


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
        keys = ("name", "template")
        if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in keys):
            raise ArtifactError(
                f"{_CONFIG}: chat_template holds {ascii(item)[:60]}; expected a text, or a list of"
                f' {{"name": "default", "template": "..."}}. Put a {_TEMPLATE} beside the model.'
            )
    return next((item["template"] for item in named if item["name"] == "default"), None)


def _read(beside: Mapping[str, bytes], name: str) -> dict[str, Any]:
    return parse_object(beside.get(name, b"{}"), name)


def prompt_ids(
    template: ChatTemplate,
    special: SpecialTokens,
    messages: Conversation,
    *,
    special_tokens: bool = False,
) -> list[int]:
    """Token numbers of a talk, up to where the assistant speaks.

    Args:
        template: sets messages as a text; what it sets around them is read as special tokens.
        special: the tokenizer.
        messages: with role and content; a role is not a user's text.
        special_tokens: read special tokens where messages spell them, too.
    """
    hidden = messages if special_tokens else _hidden(special, messages)
    if hidden == messages:
        # Nothing in the messages begins or ends a special token.
        return _encode(special, template.render(messages))[0]
    # A private character for every one that occurs in a special token.
    used = sorted({ord(c) for token in special.added.values() for c in token.content})
    letters = {letter: _FIRST_LETTER + place for place, letter in enumerate(used)}
    lettered = _changed(
        messages, lambda text: special.spellings.sub(lambda m: m[0].translate(letters), text)
    )
    text, bare, marked = template.render_all([messages, hidden, lettered])
    ids, found = _encode(special, text)
    ours = _encode(special, bare)[1]
    if found == ours:
        return ids
    refuse_private(text, _WHERE)
    back = {private: letter for letter, private in letters.items()}
    if marked.translate(back) == text:
        ids, found = special.literal.ids_around(marked, back)
        if found == ours:
            return ids
    # The first one that only one of the two lists has at its place.
    pairs = zip_longest(found, ours)
    other = next(own if read is None else read for read, own in pairs if read != own)
    raise cannot_spell(special.contents[other], _WHERE)


def _encode(special: SpecialTokens, text: str) -> tuple[list[int], list[int]]:
    """All tokens of a prompt, and the special ones among them. The template sets its own."""
    encoded = special.tokenizer.encode(text, add_special_tokens=False)
    return encoded.ids, special.spelled(encoded, text)


def _hidden(special: SpecialTokens, messages: Conversation) -> Conversation:
    """Messages without the characters that special tokens begin and end with."""
    ends = {
        end for token in special.added.values() for end in (token.content[0], token.content[-1])
    }
    normalizer = special.tokenizer.normalizer
    if normalizer is not None and any(token.normalized for token in special.added.values()):
        # Such tokens are looked for in normalised text.
        seen = {c for m in messages for value in m.values() for c in value}
        ends |= {c for c in seen if not ends.isdisjoint(normalizer.normalize_str(c))}
    table = dict.fromkeys(map(ord, ends), LAST_PRIVATE)
    return _changed(messages, lambda text: text.translate(table))


def _changed(messages: Conversation, change: Callable[[str], str]) -> list[Mapping[str, str]]:
    return [
        {name: value if name == "role" else change(value) for name, value in message.items()}
        for message in messages
    ]
