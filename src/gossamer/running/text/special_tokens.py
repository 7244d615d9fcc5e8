# SPDX-License-Identifier: Apache-2.0
"""Special tokens are set by programs, not spelled by texts.

A tokenizer turns `<|im_end|>` into the token that ends a turn wherever it reads it. In a text that
somebody sent, these are ten letters. `SpecialTokens` finds texts in which a special token was read
and encodes them again as letters; all other texts are encoded once, as they always were.
`TextTokens` are never more than the model has positions for.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gossamer.errors import InputError
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, make_tokenizer
from gossamer.running.text.facts import TOKEN_IDS, TextFacts

if TYPE_CHECKING:
    import torch

# Private characters, which no text holds: they stand for special tokens that a program sets.
FIRST_STAND_IN = 0x100000
LAST_PRIVATE = 0x10FFFD
_UNKNOWN = chr(LAST_PRIVATE)
_RARE = chr(0x12345)  # cuneiform


class SpecialTokens:
    """The tokenizer of a model, and what must not be spelled. Threads may share it.

    Args:
        tokenizer: of the package tokenizers; it is not changed.
        config: of the model; names tokens that begin, end and fill texts.

    Attributes:
        contents: spelling of every special token that texts could hold, by number.
    """

    def __init__(self, tokenizer: Any, config: Any) -> None:
        self.tokenizer = tokenizer
        values = [getattr(config, name, None) for name in TOKEN_IDS]
        lists = [value if isinstance(value, list | tuple) else [value] for value in values]
        named = {number for numbers in lists for number in numbers if type(number) is int}
        self.added: dict[int, Any] = {
            number: token
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.content and (token.special or number in named)
        }
        empty = tokenizer.encode("")
        around = zip(empty.ids, empty.special_tokens_mask, strict=True)
        self.contents: dict[int, str] = {
            **{number: tokenizer.id_to_token(number) for number, is_set in around if is_set},
            **{number: token.content for number, token in self.added.items()},
        }
        # A word that the tokenizer does not know becomes a special token, too, and spells none.
        # Normalisers take private characters out, so a rare letter is tried, too.
        tried = [tokenizer.encode(text, add_special_tokens=False) for text in (_UNKNOWN, _RARE)]
        unknown = {number for encoded in tried for number in encoded.ids}
        spelling = getattr(tokenizer.model, "unk_token", None)
        if spelling is not None:
            unknown.add(tokenizer.token_to_id(spelling))
        self._unknown = unknown & set(self.contents)

    def encode_all(
        self, texts: Sequence[str], *, where: str = "text", special_tokens: bool = False
    ) -> list[Any]:
        """Encodings with what the tokenizer sets around a text.

        Args:
            texts: each on its own.
            where: for messages.
            special_tokens: read special tokens where texts spell them.
        """
        found = self.tokenizer.encode_batch(list(texts))
        if special_tokens:
            return list(found)
        return [
            self.literal.encode(text, f"{where}[{number}]") if self.spelled(item, text) else item
            for number, (text, item) in enumerate(zip(texts, found, strict=True))
        ]

    def cut(self, text: str, length: int, *, special_tokens: bool = False) -> Any:
        """The first `length` tokens of a text, with what the tokenizer sets around them."""
        tokenizer = self.tokenizer
        encoded = tokenizer.encode(text, add_special_tokens=False)
        if not special_tokens and self.spelled(encoded, text):
            tokenizer = self.literal.tokenizer
            encoded = tokenizer.encode(text, add_special_tokens=False)
        encoded.truncate(length)
        return tokenizer.post_process(encoded)

    def spelled(self, encoded: Any, text: str) -> list[int]:
        """Special tokens that were read in `text` itself, in their order."""
        if self.contents.keys().isdisjoint(encoded.ids):
            return []
        ids, is_set = encoded.ids, encoded.special_tokens_mask
        places = [i for i, n in enumerate(ids) if n in self.contents and not is_set[i]]
        if not self._unknown.isdisjoint(ids):
            spans = encoded.offsets
            places = [
                i
                for i in places
                if ids[i] not in self._unknown
                or text[slice(*spans[i])].strip() == self.contents[ids[i]]
            ]
        return [ids[i] for i in places]

    @functools.cached_property
    def literal(self) -> "_Literal":
        """A second tokenizer that reads no special tokens; made when it is needed first."""
        return _Literal(self)

    @functools.cached_property
    def spellings(self) -> re.Pattern[str]:
        """Where a text spells one of the added special tokens."""
        # As tokenizers do: the leftmost, and of those the longest.
        tokens = sorted(self.added.values(), key=lambda token: len(token.content), reverse=True)
        parts = [
            rf"\b{re.escape(token.content)}\b" if token.single_word else re.escape(token.content)
            for token in tokens
        ]
        return re.compile("|".join(parts) or "(?!)")


class _Literal:
    """Reads every special token as letters, and its stand-in as that token."""

    def __init__(self, special: SpecialTokens) -> None:
        from tokenizers import AddedToken

        self._special = special
        description = json.loads(special.tokenizer.to_str())
        for token in description["added_tokens"]:
            token["special"] |= token["id"] in special.added
        self.tokenizer = make_tokenizer(json.dumps(description).encode())
        self.tokenizer.encode_special_tokens = True
        added = special.added
        if len(added) > LAST_PRIVATE - FIRST_STAND_IN >> 1:
            raise InputError(f"the tokenizer has {len(added)} special tokens: too many.")
        stand_ins = [chr(FIRST_STAND_IN + place) for place in range(len(added))]
        pairs = list(zip(stand_ins, added.values(), strict=True))
        self.tokenizer.add_tokens(
            [
                AddedToken(stand_in, normalized=False, lstrip=token.lstrip, rstrip=token.rstrip)
                for stand_in, token in pairs
            ]
        )
        self._stand_ins = {token.content: stand_in for stand_in, token in pairs}
        self._meant = dict(zip(map(self.tokenizer.token_to_id, stand_ins), added, strict=True))

    def encode(self, text: str, where: str) -> Any:
        """The encoding of a text with everything in it as letters."""
        refuse_private(text, where)
        encoded = self.tokenizer.encode(text)
        if spelled := self._special.spelled(encoded, text):
            raise cannot_spell(self._special.contents[spelled[0]], where)
        return encoded

    def ids_around(self, marked: str, back: Mapping[int, int]) -> tuple[list[int], list[int]]:
        """Token numbers of a text, and the special ones among them.

        Args:
            marked: the text; special tokens that it spells are read.
            back: private characters of it that stand for letters.
        """
        spellings = self._special.spellings
        text = spellings.sub(lambda match: self._stand_ins[match[0]], marked).translate(back)
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        # What is read in letters comes out here, too, so that it can be refused.
        found = [i for i in encoded.ids if i in self._meant] + self._special.spelled(encoded, text)
        ids = [self._meant.get(number, number) for number in encoded.ids]
        return ids, [self._meant.get(number, number) for number in found]


def refuse_private(text: str, where: str) -> None:
    """InputError if a text holds characters that stand for special tokens."""
    if any(character >= chr(FIRST_STAND_IN) for character in text):
        raise InputError(
            f"{where}: spells a special token and holds private characters of Unicode (plane 16)."
            " Leave out one of them."
        )


def cannot_spell(content: str, where: str) -> InputError:
    """A text whose spelling of a special token cannot be told from the token."""
    return InputError(
        f"{where}: spells the special token {content!r}, and this model's files give no way to read"
        " it as text. Leave it out, or say that special tokens are meant."
    )


class TextTokens:
    """The tokenizer of a model. It is never changed, so threads may share it.

    Args:
        beside: files beside the model's weights, by name: tokenizer.json is read.
        config: of the model, or the `TextFacts` of one.
        max_tokens: use fewer positions than the model has.
        prefix: set in front of every text.
        lower: read texts in small letters.
    """

    def __init__(
        self,
        beside: Mapping[str, bytes],
        config: Any,
        max_tokens: int | None = None,
        *,
        prefix: str = "",
        lower: bool = False,
    ) -> None:
        self._prefix, self._lower = prefix, lower
        self.tokenizer = make_tokenizer(beside.get(TOKENIZER_FILE))
        facts = config if isinstance(config, TextFacts) else TextFacts.of(config)
        self.special = SpecialTokens(self.tokenizer, facts)
        most = facts.positions
        self._around = int(self.tokenizer.num_special_tokens_to_add(False))
        if max_tokens is not None and not self._around < max_tokens <= most:
            raise InputError(
                f"max_tokens must be between {self._around + 1} and the {most} positions of this"
                f" model, got {max_tokens}."
            )
        self.max_tokens = most if max_tokens is None else max_tokens
        self.vocab_size = facts.vocab_size
        self.padding = int(facts.pad_token_id or 0)

    def whole(
        self, texts: Sequence[str], where: str = "text", *, special_tokens: bool = False
    ) -> "list[torch.Tensor]":
        """Ids of each text with what the tokenizer sets around it; InputError names a long one.

        A special token that a text spells is text like other, unless `special_tokens`.
        """
        found = self.numbers(texts, where, special_tokens=special_tokens)
        return [self.checked(ids, f"{where}[{number}]") for number, ids in enumerate(found)]

    def numbers(
        self, texts: Sequence[str], where: str = "text", *, special_tokens: bool = False
    ) -> list[list[int]]:
        """The same as lists."""
        texts = self._prepared(texts)
        encoded = self.special.encode_all(texts, where=where, special_tokens=special_tokens)
        for number, item in enumerate(encoded):
            self.check(item.ids, f"{where}[{number}]")
        return [item.ids for item in encoded]

    def cut(
        self, texts: Sequence[str], *, special_tokens: bool = False
    ) -> "tuple[list[torch.Tensor], int]":
        """Ids of each text, cut where it is too long, and how many were cut."""
        num_cut, found = 0, []
        texts = self._prepared(texts)
        encoded = self.special.encode_all(texts, special_tokens=special_tokens)
        for text, item in zip(texts, encoded, strict=True):
            if len(item.ids) > self.max_tokens:
                num_cut += 1
                length = self.max_tokens - self._around
                item = self.special.cut(text, length, special_tokens=special_tokens)
            found.append(self.checked(item.ids, "text"))
        return found, num_cut

    def _prepared(self, texts: Sequence[str]) -> Sequence[str]:
        if not self._prefix and not self._lower:
            return texts
        whole = (self._prefix + text for text in texts)
        return [text.lower() for text in whole] if self._lower else list(whole)

    def checked(self, ids: Sequence[int], where: str) -> "torch.Tensor":
        """Token numbers that this model takes, int64; InputError says what is wrong with others."""
        import torch

        self.check(ids, where)
        return torch.tensor(ids, dtype=torch.int64)

    def check(self, ids: Sequence[int], where: str) -> None:
        """InputError unless this model takes these numbers."""
        if not ids:
            raise InputError(f"{where}: has no tokens; expected at least one.")
        if len(ids) > self.max_tokens:
            raise InputError(
                f"{where}: has {len(ids)} tokens; expected at most {self.max_tokens}. Shorten it."
            )
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise InputError(
                f"{where}: token numbers must be between 0 and {self.vocab_size - 1}, got"
                f" {min(ids)} to {max(ids)}."
            )
