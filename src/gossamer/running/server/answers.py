# SPDX-License-Identifier: Apache-2.0
"""Answers in the form of OpenAI's completions and chat completions."""

import time
import uuid
from typing import Any


class Wire:
    """The answers to one request.

    Args:
        name: of the model.
        chat: messages instead of plain text.
    """

    def __init__(self, name: str, chat: bool = False) -> None:
        self.chat = chat
        kind = "chatcmpl" if chat else "cmpl"
        self._head = {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": name,
        }

    def whole(self, text: str, finish: str, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
        """An answer that is not streamed."""
        content: dict[str, Any] = {"text": text, "logprobs": None}
        if self.chat:
            content = {"message": {"role": "assistant", "content": text}}
        answer = self._with("chat.completion", {**content, "finish_reason": finish})
        return answer | {"usage": _usage(prompt_tokens, new_tokens)}

    def opening(self) -> dict[str, Any]:
        """The first event of a chat: who speaks."""
        delta = {"role": "assistant", "content": ""}
        return self._with("chat.completion.chunk", {"delta": delta, "finish_reason": None})

    def piece(self, text: str) -> dict[str, Any]:
        """Some more text."""
        return self._chunk(text, None)

    def ending(self, finish: str) -> dict[str, Any]:
        """The last event with a choice: why the text ends."""
        return self._chunk("", finish)

    def usage_only(self, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
        """An event without a choice: how many tokens it took."""
        answer = self._with("chat.completion.chunk", {})
        return answer | {"choices": [], "usage": _usage(prompt_tokens, new_tokens)}

    def _chunk(self, text: str, finish: str | None) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text, "logprobs": None}
        if self.chat:
            content = {"delta": {"content": text} if text else {}}
        return self._with("chat.completion.chunk", {**content, "finish_reason": finish})

    def _with(self, chat_object: str, choice: dict[str, Any]) -> dict[str, Any]:
        kind = chat_object if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": [{"index": 0, **choice}]}


def _usage(prompt_tokens: int, new_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new_tokens,
        "total_tokens": prompt_tokens + new_tokens,
    }
