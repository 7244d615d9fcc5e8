# SPDX-License-Identifier: Apache-2.0
"""What each route does.

/embed, /classify and /v1/embeddings: texts in, numbers out, in shared batches. /v1/completions and
/v1/chat/completions: new text, whole or as a stream of server-sent events. /v1/score: rows in,
chances out.
"""

import asyncio
import base64
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gossamer.errors import InputError
from gossamer.running.clicks import ClickScorer
from gossamer.running.decoder import GenerationOptions, Sampling
from gossamer.running.server.access import seconds_left, while_connected
from gossamer.running.server.faults import check_model
from gossamer.running.server.limits import Limits
from gossamer.running.server.requests import (
    ChatBody,
    CompletionBody,
    EmbeddingsBody,
    GenerationBody,
    ScoreBody,
    TextsBody,
)
from gossamer.running.server.workers import Batcher, TokenStream, TurnTaker
from gossamer.running.text import Classifier, TextPieces, TextTokens, Writer

# What clients of OpenAI's interface expect where they say nothing.
_COMPLETION_TOKENS = 16
_TEMPERATURE = 1.0
Json = dict[str, Any]


@dataclass(frozen=True)
class BatchedTexts:
    """Texts of requests through a `Batcher`; `name` is that of the model."""

    name: str
    tokens: TextTokens
    batcher: Batcher
    limits: Limits

    async def rows(
        self, body: TextsBody, request: Request, response: Response
    ) -> tuple[torch.Tensor, int]:
        """One row per text, and the number of tokens; `response` says what the model took."""
        check_model(body.model, self.name)
        ids = await while_connected(run_in_threadpool(self._ids, body), request)
        ticket = self.batcher.submit(ids)
        try:
            found = await while_connected(asyncio.wrap_future(ticket.future), request)
        finally:
            self.batcher.drop(ticket)
        response.headers["Server-Timing"] = f"model;dur={1e3 * ticket.seconds:.3f}"
        return found, sum(map(len, ids))

    def _ids(self, body: TextsBody) -> list[torch.Tensor]:
        inputs: Sequence[Any] = body.input
        if len(inputs) > self.limits.max_texts:
            raise InputError(
                f"input: has {len(inputs)} texts; expected at most {self.limits.max_texts}."
            )
        if isinstance(inputs[0], str):
            return self.tokens.whole(inputs, "input", special_tokens=body.special_tokens)
        return [self.tokens.checked(ids, f"input[{i}]") for i, ids in enumerate(inputs)]


def embedding_routes(router: APIRouter, texts: BatchedTexts) -> None:
    """Add /embed and /v1/embeddings."""

    @router.post("/embed")
    async def embed(body: TextsBody, request: Request, response: Response) -> Json:
        vectors, num_tokens = await texts.rows(body, request, response)
        return {"model": texts.name, "vectors": vectors.tolist(), "tokens": num_tokens}

    @router.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsBody, request: Request, response: Response) -> Json:
        vectors, num_tokens = await texts.rows(body, request, response)
        encode = _base64 if body.encoding_format == "base64" else torch.Tensor.tolist
        data = [
            {"object": "embedding", "index": i, "embedding": encode(vector)}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return {"object": "list", "data": data, "model": texts.name, "usage": usage}


def classification_routes(router: APIRouter, texts: BatchedTexts, classifier: Classifier) -> None:
    """Add /classify."""

    @router.post("/classify")
    async def classify(body: TextsBody, request: Request, response: Response) -> Json:
        scores, num_tokens = await texts.rows(body, request, response)
        results = [
            {
                "label": classifier.labels[int(row.argmax())],
                "scores": dict(zip(classifier.labels, row.tolist(), strict=True)),
            }
            for row in scores
        ]
        return {"model": texts.name, "results": results, "tokens": num_tokens}


def scoring_routes(
    router: APIRouter, scorer: ClickScorer, batcher: Batcher, limits: Limits, name: str
) -> None:
    """Add /v1/score."""

    @router.post("/v1/score")
    async def score(body: ScoreBody, request: Request) -> Json:
        check_model(body.model, name)
        if len(body.rows) > limits.max_texts:
            raise InputError(
                f"rows: has {len(body.rows)} rows; expected at most {limits.max_texts}."
            )
        rows = await while_connected(run_in_threadpool(scorer.read, body.rows), request)
        ticket = batcher.submit(rows)
        try:
            found = await while_connected(asyncio.wrap_future(ticket.future), request)
        finally:
            batcher.drop(ticket)
        return {"model": name, "scores": found.tolist()}


def _base64(vector: torch.Tensor) -> str:
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode("ascii")


@dataclass
class _Answer:
    """A text that is being written for one request, in the form of OpenAI's interface.

    Attributes:
        name: of the model.
        chat: messages instead of plain text.
        stream: its tokens.
        pieces: makes text of them.
        prompt_tokens: how many there were.
        most: as many tokens may be written.
        timeout_seconds: for a token.
        first_seconds: for the first one.
        num_tokens: written so far.
        finish: why it ended.
    """

    name: str
    chat: bool
    stream: TokenStream
    pieces: TextPieces
    prompt_tokens: int
    most: int
    timeout_seconds: float
    first_seconds: float
    num_tokens: int = 0
    finish: str = "stop"

    def __post_init__(self) -> None:
        kind = "chatcmpl" if self.chat else "cmpl"
        self._head = {
            "id": f"{kind}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": self.name,
        }

    async def whole(self) -> Json:
        """All of it, not streamed."""
        text = "".join([piece async for piece in self._written()])
        choice = self._choice("message", {"role": "assistant", "content": text}, self.finish)
        return self._form("", choice) | {"usage": self._usage()}

    async def events(self, with_usage: bool) -> AsyncIterator[str]:
        """Server-sent events; the last one with a choice says why the text ends."""
        try:
            if self.chat:
                yield self._chunk({"role": "assistant", "content": ""})
            async for piece in self._written():
                yield self._chunk({"content": piece})
            yield self._chunk({}, self.finish)
            if with_usage:
                yield _event(self._form(".chunk") | {"usage": self._usage()})
        except Exception as error:
            # The status has been sent, so the error can only be an event.
            late = isinstance(error, TimeoutError)
            message = "no token within the time limit" if late else str(error)
            yield _event({"error": {"message": message, "type": "server_error", "code": 500}})
            return
        yield "data: [DONE]\n\n"

    async def _written(self) -> AsyncIterator[str]:
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

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.prompt_tokens + self.num_tokens,
        }

    def _chunk(self, delta: dict[str, str], finish: str | None = None) -> str:
        return _event(self._form(".chunk", self._choice("delta", delta, finish)))

    def _choice(self, part: str, said: dict[str, str], finish: str | None) -> Json:
        plain = {"text": said.get("content", ""), "logprobs": None}
        return {"index": 0, **({part: said} if self.chat else plain), "finish_reason": finish}

    def _form(self, kind: str, *choices: Json) -> Json:
        name = f"chat.completion{kind}" if self.chat else "text_completion"
        return {**self._head, "object": name, "choices": choices}


def _event(content: Json) -> str:
    return f"data: {json.dumps(content)}\n\n"


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
        return await answer(body, request, ids, body.max_tokens or _COMPLETION_TOKENS, chat=False)

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatBody, request: Request) -> Response:
        check_model(body.model, name)
        messages = [{"role": m.role, "content": m.content} for m in body.messages]
        ids = await in_time(request, writer.chat_ids, messages, body.special_tokens)
        wanted = body.max_completion_tokens or body.max_tokens or writer.room(ids)
        return await answer(body, request, ids, wanted, chat=True)

    async def in_time(
        request: Request, encode: Callable[..., list[int]], content: Any, special_tokens: bool
    ) -> list[int]:
        work = run_in_threadpool(encode, content, special_tokens=special_tokens)
        return await while_connected(work, request)

    async def answer(
        body: GenerationBody, request: Request, ids: Sequence[int], most: int, *, chat: bool
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
        text = _Answer(
            name,
            chat,
            stream,
            writer.pieces(body.stop or ()),
            len(ids),
            most,
            limits.timeout_seconds,
            first_seconds=seconds_left(request.scope),
        )
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            return _EventStream(stream, text.events(with_usage))
        try:
            return JSONResponse(await while_connected(text.whole(), request, timed=False))
        finally:
            stream.drop()


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
