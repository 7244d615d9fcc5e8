# SPDX-License-Identifier: Apache-2.0
"""Messages as token numbers: special tokens of the template are tokens, those of messages are text.

A template may do anything with a message, so where a special token of the prompt came from cannot
be seen in the prompt. It is seen by setting the messages a second time, with private characters in
the place of those that begin or end special tokens: what is still special was set by the template.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from gossamer.running.text.chat_template import ChatTemplate
from gossamer.running.text.special_tokens import (
    FIRST_STAND_IN,
    LAST_PRIVATE,
    SpecialTokens,
    cannot_spell,
    refuse_private,
    spelled_as_letters,
)
from gossamer.running.text.template_process import Conversation

_WHERE = "messages"
# The upper half of the block in which stand-ins are the lower one.
_FIRST_LETTER = FIRST_STAND_IN + (LAST_PRIVATE - FIRST_STAND_IN >> 1)


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
        text = template.render(messages)
        return _encode(special, text)[0]
    letters = _letters(special)
    lettered = _changed(messages, lambda text: spelled_as_letters(text, special.added, letters))
    text, bare, marked = template.render_all([messages, hidden, lettered])
    ids, found = _encode(special, text)
    ours = _encode(special, bare)[1]
    if found == ours:
        return ids
    refuse_private(text, _WHERE)
    back = {private: letter for letter, private in letters.items()}
    if marked.translate(back) == text:
        literal = special.literal
        ids, found = literal.ids_between(literal.with_stand_ins(marked).translate(back))
        if found == ours:
            return ids
    raise cannot_spell(special.contents[_first_other(found, ours)], _WHERE)


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


def _letters(special: SpecialTokens) -> dict[int, int]:
    """A private character for every one that occurs in a special token."""
    used = sorted({ord(c) for token in special.added.values() for c in token.content})
    return {letter: _FIRST_LETTER + place for place, letter in enumerate(used)}


def _changed(messages: Conversation, change: Any) -> list[Mapping[str, str]]:
    return [
        {name: value if name == "role" else change(value) for name, value in message.items()}
        for message in messages
    ]


def _first_other(found: Sequence[int], ours: Sequence[int]) -> int:
    """The first number that only one of two lists has at its place."""
    pairs = zip_longest(found, ours)
    return next(own if other is None else other for other, own in pairs if other != own)
