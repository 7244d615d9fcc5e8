# SPDX-License-Identifier: Apache-2.0
"""What a request may say. Types are not converted, and a field nobody knows is refused.

Clients of OpenAI's interface send optional fields out of habit, with null or with the value that is
the default. They are taken where they ask for nothing (`not_done`), else refused.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator

# However a body of some megabytes is filled, looking through it takes no more than a moment.
_MAX_ITEMS = 1 << 16
_MAX_FIELDS = 64
_MAX_LABELS = 16
_NO_CHANCES = "chances of tokens are not given"
_NO_TOOLS = "tools are not called"
_WHOLE_VECTORS = "a vector is as long as the model makes it; one that is cut means something else"
_NO_AUDIO = "there is nothing but text"
_ONE_TEXT = "one text is written for a request"
_NO_PENALTY = "tokens are not penalised"


def not_done(why: str, *values: Any) -> Any:
    """A field that takes null and `values`, which ask for nothing; others are refused: `why`."""
    allowed = " or ".join(["null", *map(json.dumps, values)])

    def check(value: Any) -> None:
        if value is not None and not any(_same(value, other) for other in values):
            raise ValueError(f"{why}; expected {allowed}, got {ascii(value)[:60]}")

    field: Any = Field(None)
    field.metadata.append(BeforeValidator(check))
    return field


def _at_most(count: int, value: Any) -> Any:
    """Refuse an object with more fields, before each of them is complained about."""
    if isinstance(value, dict) and len(value) > count:
        raise ValueError(f"has {len(value)} fields; expected at most {count}")
    return value


def null_is(default: Any) -> BeforeValidator:
    """Take null for `default`."""
    return BeforeValidator(lambda value: default if value is None else value)


def _same(value: Any, other: Any) -> bool:
    """Equal, and no boolean for a number."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _texts_or_tokens(value: Any) -> Any:
    """One text, several, or token numbers of one or several, as a list of either."""
    if isinstance(value, str) or _is_tokens(value):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError("expected a text or a list of texts that is not empty")
    if len(value) > _MAX_ITEMS:
        raise ValueError(f"has {len(value)} texts; expected at most {_MAX_ITEMS}")
    is_text = isinstance(value[0], str)
    for number, item in enumerate(value):
        if is_text and isinstance(item, str):
            if not item.strip():
                raise ValueError(f"[{number}] is an empty text; expected some words")
            _check_unicode(item, f"[{number}]")
        elif is_text or not _is_tokens(item):
            expected = "a text" if is_text else "a text or a list of token numbers"
            raise ValueError(f"[{number}]: expected {expected}, got {ascii(item)[:60]}")
    return value


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


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


# Who asks, or what for. It is not read and changes no answer.
Label = Annotated[str, Field(max_length=512)] | None
Inputs = Annotated[list[str] | list[list[int]], BeforeValidator(_texts_or_tokens)]
StopText = Annotated[str, Field(min_length=1, max_length=256), BeforeValidator(_content)]


class Fields(BaseModel):
    """An object of a request: nothing but what is written here."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        return _at_most(_MAX_FIELDS, value)


class Body(Fields):
    """Of any request."""

    model: str | None = Field(None, description="The name of the served model, or nothing.")
    special_tokens: Annotated[bool, null_is(False)] = Field(
        False, description="Read special tokens where texts spell them; else they are text."
    )


class TextsBody(Body):
    """Of /embed and /classify."""

    input: Inputs


class ScoreBody(Fields):
    """Of /v1/score: rows by the names of their columns."""

    model: str | None = Field(None, description="The name of the served model, or nothing.")
    rows: Annotated[list[dict[str, Any]], FailFast(), Field(min_length=1, max_length=_MAX_ITEMS)]


class EmbeddingsBody(TextsBody):
    """Of /v1/embeddings."""

    encoding_format: Annotated[Literal["float", "base64"], null_is("float")] = "float"
    user: Label = None
    dimensions: Any = not_done(_WHOLE_VECTORS)


class StreamOptions(Fields):
    """What a stream tells besides the text."""

    include_usage: Annotated[bool, null_is(False)] = False
    include_obfuscation: Any = not_done("events are not padded", False)


class GenerationBody(Body):
    """What /v1/completions and /v1/chat/completions have in common."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[
        Annotated[list[StopText], Field(max_length=4)] | None,
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = None
    stream: Annotated[bool, null_is(False)] = False
    stream_options: StreamOptions | None = None
    # Taken where they ask for nothing that is not done anyway.
    n: Any = not_done(_ONE_TEXT, 1)
    presence_penalty: Any = not_done(_NO_PENALTY, 0)
    frequency_penalty: Any = not_done(_NO_PENALTY, 0)
    logit_bias: Any = not_done("tokens are not biased", {})
    user: Label = None


class CompletionBody(GenerationBody):
    """Of /v1/completions."""

    prompt: Inputs
    best_of: Any = not_done(_ONE_TEXT, 1)
    echo: Any = not_done("the prompt is not repeated", False)
    logprobs: Any = not_done(_NO_CHANCES)
    suffix: Any = not_done("a text cannot be filled in before another one", "")


class Message(Fields):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    name: Label = None
    # As answers carry them, which come back as messages.
    refusal: Any = not_done("a refusal is content like other")
    tool_calls: Any = not_done(_NO_TOOLS, [])
    function_call: Any = not_done(_NO_TOOLS)
    audio: Any = not_done(_NO_AUDIO)
    annotations: Any = not_done("texts are not annotated", [])


class ChatBody(GenerationBody):
    """Of /v1/chat/completions."""

    messages: Annotated[list[Message], FailFast(), Field(min_length=1, max_length=1024)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    response_format: Any = not_done("texts are not bound to a form", {"type": "text"})
    logprobs: Any = not_done(_NO_CHANCES, False)
    top_logprobs: Any = not_done(_NO_CHANCES, 0)
    tools: Any = not_done(_NO_TOOLS, [])
    tool_choice: Any = not_done(_NO_TOOLS, "none", "auto")
    parallel_tool_calls: bool | None = None
    functions: Any = not_done(_NO_TOOLS, [])
    function_call: Any = not_done(_NO_TOOLS, "none", "auto")
    modalities: Any = not_done(_NO_AUDIO, ["text"])
    audio: Any = not_done(_NO_AUDIO)
    prediction: Any = not_done("texts are not predicted by a client")
    reasoning_effort: Any = not_done("there is no effort to set", "none")
    verbosity: Any = not_done("there is no length to set but max_tokens", "medium")
    web_search_options: Any = not_done("nothing is searched")
    service_tier: Any = not_done("all requests are served alike", "auto", "default")
    store: Any = not_done("nothing is stored", False)
    # Labels, which are read by nobody and change no answer.
    metadata: Annotated[
        dict[str, str] | None, BeforeValidator(lambda value: _at_most(_MAX_LABELS, value))
    ] = None
    safety_identifier: Label = None
    prompt_cache_key: Label = None
