# SPDX-License-Identifier: Apache-2.0
"""Tokens to text as they come: whole characters, and nothing behind a stop text."""

from collections.abc import Sequence
from typing import Any

from gossamer.io.safe_files.tokenizer import guarded


class TextPieces:
    """Pieces that add up to the text of all tokens so far, up to a stop text.

    Args:
        tokenizer: of the package tokenizers.
        stop: the text ends before whichever of these is complete first.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = getattr(tokenizer, "inner", tokenizer)
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """What one more token makes certain; may be empty."""
        if self.stopped:
            return ""
        self._held += guarded(lambda: self._decoder.step(self._tokenizer, token)) or ""
        places = [place for text in self._stop if (place := self._held.find(text)) >= 0]
        if places:
            self.stopped = True
            return self._release(min(places))
        return self._release(len(self._held) - self._open_end())

    def rest(self) -> str:
        """What was held back because a stop text might have begun; call it at the end."""
        return "" if self.stopped else self._release(len(self._held))

    def _release(self, length: int) -> str:
        piece, self._held = self._held[:length], self._held[length:]
        return piece

    def _open_end(self) -> int:
        """Length of the longest end of what is held that begins a stop text."""
        longest = 0
        for text in self._stop:
            for length in range(min(len(text) - 1, len(self._held)), longest, -1):
                if self._held.endswith(text[:length]):
                    longest = length
                    break
        return longest
