# SPDX-License-Identifier: Apache-2.0
"""The application: what a model can do (embed, classify, write, score), routes, health, metrics."""

import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.families.text import is_decoder
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.clicks import ClickScorer
from gossamer.running.layers import compile as compile_model
from gossamer.running.server.access import Access, Guard
from gossamer.running.server.compare import DENSE_PREFIX, Beside, compare_routes
from gossamer.running.server.faults import check_model, install_faults
from gossamer.running.server.limits import Limits
from gossamer.running.server.metrics import Metrics
from gossamer.running.server.routes import (
    BatchedTexts,
    classification_routes,
    embedding_routes,
    scoring_routes,
    writing_routes,
)
from gossamer.running.server.workers import Batcher, RunBatch, TurnTaker, Worker
from gossamer.running.text import Classifier, Embedder, Pooling, TextTokens, Writer, make_writer

# Tokens of a call that kernels are chosen for: a sentence and a full batch.
_ENCODER_TOKENS = (32, 1024)
# Rows of a call: one, and a full batch.
_SCORED_ROWS = (1, 1024)
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Service:
    """A model under a name; what it cannot do is None."""

    name: str
    embedder: Embedder | None = None
    classifier: Classifier | None = None
    writer: Writer | None = None
    scorer: ClickScorer | None = None


def make_service(
    model: nn.Module,
    beside: Mapping[str, bytes],
    name: str,
    *,
    precision: str = "fp32",
    pooling: Pooling | None = None,
    prompt: str | None = None,
    context: int | None = None,
    keys: KeyRules | None = None,
) -> Service:
    """Compile `model` in place and say what it serves.

    Args:
        model: of transformers, or one of click logs.
        beside: files beside its weights, by name: tokenizer.json or features.arrays is needed.
        name: what clients call it.
        precision: the lowest one that kernels may compute in.
        pooling: of embeddings; None = as the files beside it say.
        prompt: name of the prompt in front of texts to embed; likewise.
        context: the most tokens of a text that is written; None: as the engine chooses.
        keys: which keys a token of such a text attends to, and what they are stored in.
    """
    writes = is_decoder(model)
    if not writes and (context is not None or (keys is not None and keys != KeyRules())):
        raise InputError(
            f"{name}: a context, an attention and a type of keys are for models that write text,"
            f" and {type(model).__name__} is none."
        )
    if ClickScorer.fits(beside):
        # Before kernels are chosen: a vocabulary of another run is refused at once.
        ClickScorer(model, beside, name)
        fast = compile_model(model, tokens=_SCORED_ROWS, inplace=True, precision=precision)
        return Service(name, scorer=ClickScorer(fast, beside, name))
    if writes:
        writer = make_writer(model, beside, precision=precision, context=context, keys=keys)
        return Service(name, writer=writer)
    fast = compile_model(model, tokens=_ENCODER_TOKENS, inplace=True, precision=precision)
    classifier = Classifier(fast, beside) if Classifier.fits(fast) else None
    return Service(name, Embedder(fast, beside, pooling=pooling, prompt=prompt), classifier)


def build_app(
    service: Service,
    limits: Limits | None = None,
    access: Access | None = None,
    beside: Beside | None = None,
) -> FastAPI:
    """An ASGI application; its worker threads live from its start to its shutdown.

    Args:
        service: what the model can do.
        limits: how much is taken on at once.
        access: who may ask; whoever calls the server by a name of the loopback, if not given.
        beside: a dense model to compare with, on the page /compare.
    """
    bounds = limits or Limits()
    metrics = Metrics()
    workers: list[Worker[Any]] = []

    metrics.queue.set_function(lambda: sum(map(len, workers)))
    router, dense = APIRouter(), APIRouter(prefix=DENSE_PREFIX)

    @router.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "model": service.name, "queue_length": sum(map(len, workers))}

    model = {
        "id": service.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "gossamer",
    }

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        check_model(name, service.name)
        return model

    @router.get("/metrics", response_model=None)
    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type=_METRICS_TYPE)

    _add_routes(router, service, bounds, metrics, workers)
    if beside is not None:
        compare_routes(router, service, beside)
        _add_routes(dense, beside.dense, bounds, metrics, workers)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for worker in workers:
            worker.start()
        yield
        for worker in workers:
            await run_in_threadpool(worker.close)

    # Pages that describe the interface would load scripts from elsewhere.
    app = FastAPI(
        title=f"gossamer: {service.name}", docs_url=None, redoc_url=None, lifespan=lifespan
    )
    found: list[Any] = [*router.routes, *dense.routes]
    for each in (router, dense):
        app.include_router(each)
    paths = [route.path for route in found if "{" not in route.path]
    install_faults(app, bounds, paths)
    app.add_middleware(
        Guard, access=access or Access(), limits=bounds, metrics=metrics, endpoints=paths
    )
    return app


def _add_routes(
    router: APIRouter,
    service: Service,
    limits: Limits,
    metrics: Metrics,
    workers: list[Worker[Any]],
) -> None:
    """Routes for everything that a model can do; their workers are added to `workers`."""
    turn = threading.Lock()

    def batcher(run: RunBatch) -> Batcher:
        made = Batcher(run, limits, metrics, turn)
        workers.append(made)
        return made

    def batched(tokens: TextTokens, run: RunBatch) -> BatchedTexts:
        return BatchedTexts(service.name, tokens, batcher(run), limits)

    if (embedder := service.embedder) is not None:
        embedding_routes(router, batched(embedder.tokens, embedder.vectors))
    if (classifier := service.classifier) is not None:
        classification_routes(router, batched(classifier.tokens, classifier.scores), classifier)
    if (scorer := service.scorer) is not None:
        scoring_routes(router, scorer, batcher(scorer.chances), limits, service.name)
    if (writer := service.writer) is not None:
        turns = TurnTaker(writer.engine, limits, metrics)
        workers.append(turns)
        writing_routes(router, writer, turns, limits, service.name)
