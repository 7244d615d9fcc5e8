# SPDX-License-Identifier: Apache-2.0
"""/v1/completions and /v1/chat/completions, whole or as a stream of server-sent events."""

import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gossamer.errors import InputError
from gossamer.running.decoder import GenerationOptions, Sampling
from gossamer.running.server.faults import check_model
from gossamer.running.server.limits import Limits
from gossamer.running.server.request_body import seconds_left, while_connected
from gossamer.running.server.requests import ChatBody, CompletionBody, GenerationBody
from gossamer.running.server.workers import TokenStream, TurnTaker
from gossamer.running.text import TextPieces, Writer

# What clients of OpenAI's interface expect where they say nothing.
_COMPLETION_TOKENS = 16
_TEMPERATURE = 1.0


class _Wire:
    """The answers to one request, in the form of OpenAI's interface.

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

    def whole(self, text: str, finish: str, usage: dict[str, int]) -> dict[str, Any]:
        """An answer that is not streamed."""
        choice = self._choice("message", {"role": "assistant", "content": text}, finish)
        return self._answer("", [choice]) | {"usage": usage}

    def piece(self, delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        """Some more text, or who speaks; the last event with a choice says why the text ends."""
        return self._answer(".chunk", [self._choice("delta", delta, finish)])

    def usage_only(self, usage: dict[str, int]) -> dict[str, Any]:
        """An event without a choice: how many tokens it took."""
        return self._answer(".chunk", []) | {"usage": usage}

    def _choice(self, part: str, said: dict[str, str], finish: str | None) -> dict[str, Any]:
        plain = {"text": said.get("content", ""), "logprobs": None}
        return {"index": 0, **({part: said} if self.chat else plain), "finish_reason": finish}

    def _answer(self, form: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = f"chat.completion{form}" if self.chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices}


@dataclass
class _Text:
    """A text that is being written, and how it ended."""

    stream: TokenStream
    pieces: TextPieces
    prompt_tokens: int
    most: int
    timeout_seconds: float
    first_seconds: float
    num_tokens: int = 0
    finish: str = "stop"

    async def written(self) -> AsyncIterator[str]:
        """Pieces of the text; `finish` is right when they end."""
        patience = self.first_seconds
        while (token := await self.stream.next(patience)) is not None:
            patience = self.timeout_seconds
            self.num_tokens += 1
            if piece := self.pieces.add(token):
                yield piece
            if self.pieces.stopped:
                return
        if self.num_tokens >= self.most:
            self.finish = "length"
        if piece := self.pieces.rest():
            yield piece

    @property
    def usage(self) -> dict[str, int]:
        """How many tokens it took so far."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.prompt_tokens + self.num_tokens,
        }

    async def whole(self) -> str:
        """All of it."""
        return "".join([piece async for piece in self.written()])


def writing_routes(
    router: APIRouter, writer: Writer, turns: TurnTaker, limits: Limits, name: str
) -> None:
    """Add /v1/completions and /v1/chat/completions."""

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionBody, request: Request) -> Response:
        check_model(body.model, name)
        if len(body.prompt) != 1:
            raise InputError(f"prompt: expected one prompt, got {len(body.prompt)}.")
        prompt = body.prompt[0]
        if isinstance(prompt, str):
            ids = await in_time(request, writer.prompt_ids, prompt, body.special_tokens)
        else:
            ids = writer.tokens.checked(prompt, "prompt").tolist()
        return await answer(body, request, ids, body.max_tokens or _COMPLETION_TOKENS, _Wire(name))

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatBody, request: Request) -> Response:
        check_model(body.model, name)
        messages = [{"role": m.role, "content": m.content} for m in body.messages]
        ids = await in_time(request, writer.chat_ids, messages, body.special_tokens)
        wanted = body.max_completion_tokens or body.max_tokens or writer.room(ids)
        return await answer(body, request, ids, wanted, _Wire(name, chat=True))

    async def in_time(
        request: Request, encode: Callable[..., list[int]], content: Any, special_tokens: bool
    ) -> list[int]:
        work = run_in_threadpool(encode, content, special_tokens=special_tokens)
        return await while_connected(work, request)

    async def answer(
        body: GenerationBody, request: Request, ids: Sequence[int], most: int, wire: _Wire
    ) -> Response:
        context = writer.engine.context
        if len(ids) + most > context:
            raise InputError(
                f"max_tokens: {len(ids)} tokens of the prompt and {most} new ones are more than the"
                f" {context} that this model can read. Shorten the prompt or ask for fewer."
            )
        sampling = Sampling(
            temperature=_TEMPERATURE if body.temperature is None else body.temperature,
            top_k=body.top_k,
            top_p=1.0 if body.top_p is None else body.top_p,
            seed=secrets.randbits(63) if body.seed is None else body.seed,
        )
        stream = turns.submit(ids, GenerationOptions(most, sampling, writer.ends))
        text = _Text(
            stream,
            writer.pieces(body.stop or ()),
            len(ids),
            most,
            limits.timeout_seconds,
            first_seconds=seconds_left(request.scope),
        )
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            return _EventStream(stream, _events(text, wire, with_usage))
        try:
            written = await while_connected(text.whole(), request, timed=False)
        finally:
            stream.drop()
        return JSONResponse(wire.whole(written, text.finish, text.usage))


class _EventStream(StreamingResponse):
    """Server-sent events; however the response ends, the text is not written on."""

    media_type = "text/event-stream"

    def __init__(self, stream: TokenStream, events: AsyncIterator[str]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-store"})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.drop()


async def _events(text: _Text, wire: _Wire, with_usage: bool) -> AsyncIterator[str]:
    try:
        if wire.chat:
            yield _event(wire.piece({"role": "assistant", "content": ""}))
        async for piece in text.written():
            yield _event(wire.piece({"content": piece}))
        yield _event(wire.piece({}, text.finish))
        if with_usage:
            yield _event(wire.usage_only(text.usage))
    except Exception as error:
        # The status has been sent, so the error can only be an event.
        late = isinstance(error, TimeoutError)
        message = "no token within the time limit" if late else str(error)
        yield _event({"error": {"message": message, "type": "server_error", "code": 500}})
        return
    yield "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"
