# SPDX-License-Identifier: Apache-2.0
"""A page to try a model beside its dense one: the same text to both, times and answers in columns.

The page is one file, and asks nobody but this server. What may run in it is named by its hash.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from gossamer.errors import InputError
from gossamer.running.server.access import COMPARE_PAGE

if TYPE_CHECKING:
    from gossamer.running.server.app import Service

# Where the dense model's routes are.
DENSE_PREFIX = "/dense"
_EXAMPLES = (
    "The chef cooked a tomato soup.",
    "Fresh bread was baked this morning.",
    "The striker missed a penalty in the cup final.",
    "Our goalkeeper saved the second half.",
    "The engineer rewrote the database driver.",
    "A web server was released last summer.",
    "The nurse treated a broken arm.",
    "A space probe photographed the rings of Saturn.",
    "The bank raised its interest rates.",
)


@dataclass(frozen=True)
class Beside:
    """The dense model beside the one that is served, and what the page says of both.

    Attributes:
        dense: the model.
        sizes: bytes of the tensor files of the dense model and of the other; None if unknown.
        precisions: of their kernels.
        texts: sentences to search in, where the models embed; examples if there are none.
    """

    dense: "Service"
    sizes: tuple[int | None, int | None] = (None, None)
    precisions: tuple[str, str] = ("fp32", "fp32")
    texts: Sequence[str] = ()


def compare_routes(router: APIRouter, service: "Service", beside: Beside) -> None:
    """Add the page and what it is about; InputError if the two models do different things."""
    does = work_of(service)
    if does != work_of(beside.dense) or does == "score":
        raise InputError(
            f"compare: {service.name} can {does}, {beside.dense.name} can {work_of(beside.dense)};"
            " expected two models that both embed, classify or write. Compare models of one task."
        )
    columns = (beside.dense, "dense", DENSE_PREFIX), (service, "shrunken", "")
    about = {
        "does": does,
        "texts": list(beside.texts or _EXAMPLES),
        "columns": [
            {
                "name": each.name,
                "title": title,
                "prefix": prefix,
                "bytes": size,
                "precision": precision,
            }
            for (each, title, prefix), size, precision in zip(
                columns, beside.sizes, beside.precisions, strict=True
            )
        ],
    }
    page = files("gossamer.running.server").joinpath("compare.html").read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": _policy(page), "Cache-Control": "no-store"}

    @router.get(COMPARE_PAGE, response_model=None)
    async def read_page() -> HTMLResponse:
        return HTMLResponse(page, headers=headers)

    @router.get(f"{COMPARE_PAGE}/about")
    async def read_about() -> dict[str, Any]:
        return about


def work_of(service: "Service") -> str:
    """What a model does, in a word: the first of what it can."""
    if service.writer is not None:
        return "write"
    if service.scorer is not None:
        return "score"
    return "embed" if service.classifier is None else "classify"


def _policy(page: str) -> str:
    """Only what the page itself holds may run in it, and only this server may be asked."""
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
