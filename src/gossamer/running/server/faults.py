# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong in a request, as one JSON form: what is wrong, where, what was expected."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gossamer.errors import GossamerError, InputError
from gossamer.running.server.limits import Limits, QueueFull
from gossamer.running.text.template_process import TemplateTooSlow

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


def overloaded(limits: Limits) -> JSONResponse:
    """503: as many requests wait as may."""
    message = f"the server is busy: {limits.max_queue} requests wait already. Try again later."
    return fault(503, message, headers={"Retry-After": "1"})


def install_faults(app: FastAPI, limits: Limits, paths: Sequence[str]) -> None:
    """Give every error of `app` the one form; whoever asks for another path is told `paths`."""

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        if found and found[0]["type"] == "json_invalid":
            reason = found[0].get("ctx", {}).get("error", "")
            return fault(400, f"body: is not JSON ({reason}). Expected a JSON object.")
        lines = [_sentence(item) for item in found[:5]]
        return fault(422, " ".join(lines), _path(found[0]) if found else None)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code in (404, 405):
            where = ascii(request.url.path)[1:-1][:80]
            message = f"{where}: {message}. This model serves {', '.join(sorted(paths))}."
        return fault(error.status_code, message, headers=dict(error.headers or {}))

    @app.exception_handler(QueueFull)
    async def full(_: Request, __: QueueFull) -> JSONResponse:
        return overloaded(limits)

    @app.exception_handler(TimeoutError)
    async def late(_: Request, __: TimeoutError) -> JSONResponse:
        seconds = limits.timeout_seconds
        return fault(504, f"no answer within {seconds:g} s: the server is busy. Try again later.")

    @app.exception_handler(TemplateTooSlow)
    async def slow(_: Request, error: TemplateTooSlow) -> JSONResponse:
        return fault(504, str(error), "messages")

    @app.exception_handler(ClientGone)
    async def gone(_: Request, __: ClientGone) -> JSONResponse:
        # Nobody reads it; the number shows in the metrics.
        return fault(499, "the client has gone.")

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> JSONResponse:
        # The server logs the traceback.
        return fault(500, f"this is a bug of gossamer ({type(error).__name__}).")

    @app.exception_handler(OtherModel)
    async def other(_: Request, error: OtherModel) -> JSONResponse:
        return fault(404, str(error), "model")

    @app.exception_handler(GossamerError)
    async def refused(_: Request, error: GossamerError) -> JSONResponse:
        return fault(422 if isinstance(error, InputError) else 500, str(error))


def _path(item: Any) -> str:
    return ".".join(str(part) for part in item["loc"][1:]) or "body"


def _sentence(item: Any) -> str:
    message = str(item["msg"]).removeprefix("Value error, ").rstrip(".")
    if item["type"] in ("missing", "value_error"):
        return f"{_path(item)}: {message}."
    if item["type"] == "extra_forbidden":
        return f"{ascii(_path(item))[1:-1][:80]}: is no field of this request."
    return f"{_path(item)}: {message}, got {ascii(item['input'])[:60]}."
