# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong in a request, as one JSON form: what is wrong, where, what was expected."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gossamer.errors import GossamerError, InputError
from gossamer.running.server.limits import Limits, QueueFull
from gossamer.running.text.chat import TemplateTooSlow

Answer = Callable[[Any, Request], JSONResponse]

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    408: "timeout",
    413: "too_large",
    503: "overloaded",
    504: "timeout",
}


class ClientGone(Exception):
    """Nobody reads the answer any more."""


class OtherModel(Exception):
    """A request names a model that is not served."""


def check_model(wanted: str | None, served: str) -> None:
    """OtherModel unless the request means the model that is served, or none."""
    if wanted is not None and wanted != served:
        raise OtherModel(f"model: {ascii(wanted)[:80]} is not served; expected {served!r}.")


def fault(
    status: int, message: str, param: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error in the form that clients of OpenAI's interface read."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    content = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    return JSONResponse(content, status, headers)


def install_faults(app: FastAPI, limits: Limits, paths: Sequence[str]) -> None:
    """Give every error of `app` the one form; whoever asks for another path is told `paths`."""
    busy = f"the server is busy: {limits.max_queue} requests wait already. Try again later."
    late = f"no answer within {limits.timeout_seconds:g} s: the server is busy. Try again later."

    def http(error: HTTPException, request: Request) -> JSONResponse:
        message = str(error.detail)
        if error.status_code in (404, 405):
            where = ascii(request.url.path)[1:-1][:80]
            message = f"{where}: {message}. This model serves {', '.join(sorted(paths))}."
        return fault(error.status_code, message, headers=dict(error.headers or {}))

    answers: dict[type[Exception], Answer] = {
        RequestValidationError: lambda error, _: _malformed(error.errors()),
        HTTPException: http,
        QueueFull: lambda *_: fault(503, busy, headers={"Retry-After": "1"}),
        TimeoutError: lambda *_: fault(504, late),
        TemplateTooSlow: lambda error, _: fault(504, str(error), "messages"),
        # Nobody reads it; the number shows in the metrics.
        ClientGone: lambda *_: fault(499, "the client has gone."),
        OtherModel: lambda error, _: fault(404, str(error), "model"),
        InputError: lambda error, _: fault(422, str(error)),
        GossamerError: lambda error, _: fault(500, str(error)),
        # The server logs the traceback.
        Exception: lambda error, _: fault(
            500, f"this is a bug of gossamer ({type(error).__name__})."
        ),
    }
    for kind, answer in answers.items():

        @app.exception_handler(kind)
        async def respond(
            request: Request, error: Exception, answer: Answer = answer
        ) -> JSONResponse:
            return answer(error, request)


def _malformed(found: Sequence[Any]) -> JSONResponse:
    if found[0]["type"] == "json_invalid":
        reason = found[0].get("ctx", {}).get("error", "")
        return fault(400, f"body: is not JSON ({reason}). Expected a JSON object.")
    return fault(422, " ".join(map(_sentence, found[:5])), _path(found[0]))


def _path(item: Any) -> str:
    return ".".join(str(part) for part in item["loc"][1:]) or "body"


def _sentence(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ").rstrip(".")
    if item["type"] in ("missing", "value_error"):
        return f"{_path(item)}: {message}."
    if item["type"] == "extra_forbidden":
        return f"{ascii(_path(item))[1:-1][:80]}: is no field of this request."
    return f"{_path(item)}: {message}, got {ascii(item['input'])[:60]}."
