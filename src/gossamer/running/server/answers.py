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
        message = {"message": {"role": "assistant", "content": text}}
        answer = self._with("chat.completion", [self._choice(text, message, finish)])
        return answer | {"usage": _usage(prompt_tokens, new_tokens)}

    def opening(self) -> dict[str, Any]:
        """The first event of a chat: who speaks."""
        return self._chunk("", {"role": "assistant", "content": ""}, None)

    def piece(self, text: str, finish: str | None = None) -> dict[str, Any]:
        """Some more text; the last event with a choice says why the text ends."""
        return self._chunk(text, {"content": text} if text else {}, finish)

    def usage_only(self, prompt_tokens: int, new_tokens: int) -> dict[str, Any]:
        """An event without a choice: how many tokens it took."""
        answer = self._with("chat.completion.chunk", [])
        return answer | {"usage": _usage(prompt_tokens, new_tokens)}

    def _chunk(self, text: str, delta: dict[str, str], finish: str | None) -> dict[str, Any]:
        choice = self._choice(text, {"delta": delta}, finish)
        return self._with("chat.completion.chunk", [choice])

    def _choice(self, text: str, chat: dict[str, Any], finish: str | None) -> dict[str, Any]:
        content = chat if self.chat else {"text": text, "logprobs": None}
        return {"index": 0, **content, "finish_reason": finish}

    def _with(self, chat_object: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = chat_object if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices}


def _usage(prompt_tokens: int, new_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": new_tokens,
        "total_tokens": prompt_tokens + new_tokens,
    }
