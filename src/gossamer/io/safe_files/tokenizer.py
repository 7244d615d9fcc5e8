# SPDX-License-Identifier: Apache-2.0
"""The package tokenizers, whose failures (panics included) become errors of ours.

Start at `make_tokenizer`, which takes the bytes of a tokenizer.json.
"""

import base64
import math
import re
from collections.abc import Callable
from typing import Any

from gossamer.errors import ArtifactError, InputError, ResourceError
from gossamer.io.safe_files import MAX_LINE_VALUES
from gossamer.io.safe_files.documents import parse_json

__all__ = ["TOKENIZER_FILE", "GuardedTokenizer", "guarded", "known_tokens", "make_tokenizer"]

TOKENIZER_FILE = "tokenizer.json"
_CURE = "Take the tokenizer.json that was published with the model."
_MAX_RULES_BYTES = 2**20
# A text may become this many times as long before it is cut into tokens.
_MAX_GROWTH = 64.0
# Also where a letter of the name is written as an escape, which no writer does.
_MAY_HOLD_MAP = re.compile(rb"recompiled|\\u00[4-7][0-9a-fA-F]")
_PASSED = (KeyboardInterrupt, SystemExit, GeneratorExit)


class GuardedTokenizer:
    """A `tokenizers.Tokenizer`; everything it has is reached through this, errors excepted.

    Attributes:
        inner: the tokenizer itself, for functions of its package that take one.
        known_tokens: tokens of the model it is used with; a larger number is refused.
    """

    inner: Any
    known_tokens: int | None

    def __init__(self, inner: Any, known_tokens: int | None = None) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "known_tokens", known_tokens)

    def encode(self, *args: Any, **options: Any) -> Any:
        """As `Tokenizer.encode`."""
        return self._known(guarded(lambda: self.inner.encode(*args, **options)))

    def encode_batch(self, *args: Any, **options: Any) -> list[Any]:
        """As `Tokenizer.encode_batch`."""
        found = guarded(lambda: self.inner.encode_batch(*args, **options))
        return [self._known(item) for item in found]

    def __getattr__(self, name: str) -> Any:
        found = guarded(lambda: getattr(self.inner, name))
        if not callable(found):
            return found
        return lambda *args, **options: guarded(lambda: found(*args, **options))

    def __setattr__(self, name: str, value: Any) -> None:
        guarded(lambda: setattr(self.inner, name, value))

    def _known(self, encoded: Any) -> Any:
        largest = max(encoded.ids, default=0)
        if self.known_tokens is not None and largest >= self.known_tokens:
            raise ArtifactError(
                f"{TOKENIZER_FILE}: gives the token {largest}, but the model has tokens 0 to"
                f" {self.known_tokens - 1}. {_CURE}"
            )
        return encoded


def make_tokenizer(content: bytes | None, known_tokens: int | None = None) -> GuardedTokenizer:
    """The tokenizer in the bytes of a tokenizer.json; nothing is downloaded and no code is run.

    Args:
        content: the file; None where there is none.
        known_tokens: of the model whose inputs it makes; None where nobody knows.
    """
    if content is None:
        raise InputError(
            f"there is no {TOKENIZER_FILE} beside the model, so text cannot be read. Put one there,"
            " or give token ids: a .safetensors file with a tensor input_ids [samples, tokens]."
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ResourceError(
            "the package tokenizers is not installed. Install the extra [hf]: pip install"
            " 'gossamer[hf]'."
        ) from error
    if _MAY_HOLD_MAP.search(content):
        _check_maps(content)
    try:
        inner = Tokenizer.from_buffer(content)
        inner.no_truncation()
        inner.no_padding()
        rules = [part.__getstate__() for part in (inner.normalizer, inner.decoder) if part]
    except _PASSED:
        raise
    except BaseException as error:
        raise InputError(f"{TOKENIZER_FILE}: is no tokenizer ({_short(error)}). {_CURE}") from error
    for raw in rules:
        growth = _growth(parse_json(raw, TOKENIZER_FILE, max_bytes=_MAX_RULES_BYTES))
        # Rules that replace short texts by long ones until memory is full.
        if growth > _MAX_GROWTH:
            raise ArtifactError(
                f"{TOKENIZER_FILE}: its replacements make a text up to {growth:.3g} times as long;"
                f" at most {_MAX_GROWTH:g} times are allowed. {_CURE}"
            )
    return GuardedTokenizer(inner, known_tokens)


def known_tokens(model: Any) -> int | None:
    """Tokens that a model has numbers for, if its configuration tells."""
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    return size if type(size) is int else None


def guarded(call: Callable[[], Any]) -> Any:
    """What a call into the package gives, or a GossamerError."""
    try:
        return call()
    except (*_PASSED, AttributeError):
        raise
    except (TypeError, UnicodeError) as error:
        raise InputError(f"text: the tokenizer does not take it ({_short(error)}).") from error
    except BaseException as error:
        raise ArtifactError(f"{TOKENIZER_FILE}: fails ({_short(error)}). {_CURE}") from error


def _check_maps(content: bytes) -> None:
    """Refuse maps of characters that announce more than they hold.

    The package reserves what a map announces, and where there is not so much the process is ended.
    """
    left = [parse_json(content, TOKENIZER_FILE, max_values=MAX_LINE_VALUES)]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left.extend(part)
        elif isinstance(part, dict):
            left.extend(value for key, value in part.items() if key != "vocab")
            text = part.get("precompiled_charsmap")
            if text is not None and not _is_whole_map(text):
                raise ArtifactError(
                    f"{TOKENIZER_FILE}: its precompiled_charsmap announces more than it holds."
                    f" {_CURE}"
                )


def _is_whole_map(text: Any) -> bool:
    """Whether a map has the bytes that its first four announce, in words of four."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (ValueError, TypeError):
        return False
    size = int.from_bytes(raw[:4], "little")
    return len(raw) >= 4 + size and size % 4 == 0


def _growth(rule: Any) -> float:
    """How many times as long a text can get; rules are applied one after the other."""
    if isinstance(rule, list):
        return min(math.prod(map(_growth, rule)), 1e300)
    if not isinstance(rule, dict):
        return 1.0
    if rule.get("type") == "Replace":
        pattern, content = rule.get("pattern"), rule.get("content")
        plain = pattern.get("String") if isinstance(pattern, dict) else None
        # A regular expression can match nothing at all, between any two characters.
        length = len(plain) if isinstance(plain, str) and plain else 1
        return max(1.0, len(str(content)) / length + (plain is None))
    return _growth(list(rule.values()))


def _short(error: BaseException) -> str:
    return ascii(f"{error}")[1:-1][:160]
