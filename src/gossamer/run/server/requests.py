# SPDX-License-Identifier: Apache-2.0
"""What a request may say. Types are not converted, and a field nobody knows is refused."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _texts_or_tokens(value: Any) -> Any:
    """One text, several, or token numbers of one or several, as a list of either."""
    if isinstance(value, str) or _is_tokens(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("expected a text or a list of texts that is not empty")
    is_text = isinstance(value[0], str)
    for number, item in enumerate(value):
        if is_text and isinstance(item, str):
            _check_text(item, f"[{number}]")
        elif is_text or not _is_tokens(item):
            expected = "a text" if is_text else "a text or a list of token numbers"
            raise ValueError(f"[{number}]: expected {expected}, got {ascii(item)[:60]}")
    return value


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _check_text(text: str, where: str) -> None:
    if not text.strip():
        raise ValueError(f"{where} is an empty text; expected some words".lstrip())
    _check_unicode(text, where)


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds half of a surrogate pair at character {error.start}; expected"
            " Unicode text".lstrip()
        ) from None


def _content(value: Any) -> Any:
    """The text of a message; parts of text are joined."""
    if isinstance(value, list):
        if not all(
            isinstance(part, dict)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in value
        ):
            raise ValueError('expected a text, or parts {"type": "text", "text": "..."} only')
        value = "".join(part["text"] for part in value)
    if isinstance(value, str):
        _check_unicode(value, "")
    return value


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Inputs = Annotated[list[str] | list[list[int]], BeforeValidator(_texts_or_tokens)]
StopText = Annotated[str, Field(min_length=1, max_length=256), BeforeValidator(_content)]


class Body(BaseModel):
    """Of any request."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = Field(None, description="The name of the served model, or nothing.")


class TextsBody(Body):
    """Of /embed and /classify."""

    input: Inputs


class EmbeddingsBody(TextsBody):
    """Of /v1/embeddings."""

    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


class StreamOptions(BaseModel):
    """What a stream tells besides the text."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False


class GenerationBody(Body):
    """What /v1/completions and /v1/chat/completions have in common."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Annotated[
        Annotated[list[StopText], Field(max_length=4)] | None, BeforeValidator(_stops)
    ] = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    # Taken where they ask for nothing that is not done anyway.
    n: Literal[1] = 1
    presence_penalty: Literal[0] = 0
    frequency_penalty: Literal[0] = 0
    user: str | None = None


class CompletionBody(GenerationBody):
    """Of /v1/completions."""

    prompt: Inputs


class Message(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    name: str | None = None


class ChatBody(GenerationBody):
    """Of /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1024)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
