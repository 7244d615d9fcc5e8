# SPDX-License-Identifier: Apache-2.0
"""/embed, /classify and /v1/embeddings: texts in, numbers out, in shared batches."""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from gossamer.errors import InputError
from gossamer.running.server.faults import check_model
from gossamer.running.server.limits import Limits
from gossamer.running.server.request_body import while_connected
from gossamer.running.server.requests import EmbeddingsBody, TextsBody
from gossamer.running.server.workers import Batcher
from gossamer.running.text import Classifier, TextTokens


@dataclass(frozen=True)
class BatchedTexts:
    """Texts of requests through a `Batcher`; `name` is that of the model."""

    name: str
    tokens: TextTokens
    batcher: Batcher
    limits: Limits

    async def rows(self, body: TextsBody, request: Request) -> tuple[torch.Tensor, int]:
        """One row per text, and the number of tokens."""
        check_model(body.model, self.name)
        ids = await while_connected(run_in_threadpool(self._ids, body), request)
        ticket = self.batcher.submit(ids)
        try:
            found = await while_connected(asyncio.wrap_future(ticket.future), request)
        finally:
            self.batcher.drop(ticket)
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
    async def embed(body: TextsBody, request: Request) -> dict[str, Any]:
        vectors, num_tokens = await texts.rows(body, request)
        return {"model": texts.name, "vectors": vectors.tolist(), "tokens": num_tokens}

    @router.post("/v1/embeddings")
    async def embeddings(body: EmbeddingsBody, request: Request) -> dict[str, Any]:
        vectors, num_tokens = await texts.rows(body, request)
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
    async def classify(body: TextsBody, request: Request) -> dict[str, Any]:
        scores, num_tokens = await texts.rows(body, request)
        results = [
            {
                "label": classifier.labels[int(row.argmax())],
                "scores": dict(zip(classifier.labels, row.tolist(), strict=True)),
            }
            for row in scores
        ]
        return {"model": texts.name, "results": results, "tokens": num_tokens}


def _base64(vector: torch.Tensor) -> str:
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode("ascii")
