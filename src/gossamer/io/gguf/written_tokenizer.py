# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a model as settings of a gguf file: `tokenizer.py` the other way round.

A file names how text is cut, so only a tokenizer whose every step has such a name can be written.
What was written is made a tokenizer again and compared with the one it came from: pieces, merges
and steps. One that would give other tokens is refused.
"""

import re
from collections.abc import Mapping
from typing import Any

from gossamer.errors import InputError
from gossamer.io.gguf.tokenizer import (
    LLAMA_BPE,
    PRE_TOKENIZERS,
    SPECIAL,
    TEMPLATE,
    tokenizer_content,
)
from gossamer.io.safe_files.documents import decode_text, parse_json

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_FILE, _CONFIG, _CHAT = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
# What is said of offsets changes no token.
_SILENT = ("trim_offsets",)


def tokenizer_settings(beside: Mapping[str, bytes], config: Any) -> dict[str, Any]:
    """Settings of a file, by their full names; those of a file without tokenizer if there is none.

    Args:
        beside: the files beside the model.
        config: of the model; its table may have more rows than there are tokens.

    Raises:
        InputError: llama.cpp has no name for a step of the tokenizer.
    """
    if _FILE not in beside:
        return {"tokenizer.ggml.model": "none"}
    content = parse_json(beside[_FILE], _FILE, max_values=2**24, error=InputError)
    further = parse_json(beside[_CONFIG], _CONFIG, error=InputError) if _CONFIG in beside else {}
    try:
        settings = _pieces(content, config.vocab_size) | _steps(content, config.vocab_size)
        settings |= _special(content, further, config)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{_FILE}: is not a tokenizer that gguf files hold ({error!r}). Remove it to write a"
            " file without tokenizer."
        ) from error
    template = further.get("chat_template")
    if _CHAT in beside:
        template = decode_text(beside[_CHAT], _CHAT)
    if isinstance(template, str):
        settings[TEMPLATE] = template
    _check_same(content, settings)
    return settings


def _pieces(content: dict[str, Any], num_rows: int) -> dict[str, Any]:
    """Tokens by number, and what each is."""
    model = content["model"]
    if model["type"] != "BPE":
        raise InputError(
            f"{_FILE}: a tokenizer of the type {model['type']!r} cannot be written to gguf;"
            " expected BPE. Remove it to write a file without tokenizer."
        )
    numbers = dict(model["vocab"])
    added = {entry["content"]: entry for entry in content.get("added_tokens", [])}
    numbers |= {text: entry["id"] for text, entry in added.items()}
    tokens: list[str] = [f"[PAD{number}]" for number in range(num_rows)]
    kinds = [_UNUSED] * num_rows
    for text, number in numbers.items():
        if not 0 <= number < num_rows:
            raise InputError(
                f"{_FILE}: token {text[:40]!a} has number {number}, but the model has {num_rows}"
                " rows. Use the tokenizer of this model."
            )
        tokens[number] = text
        kinds[number] = _kind(text, added, model)
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}


def _kind(text: str, added: Mapping[str, Any], model: Mapping[str, Any]) -> int:
    if model.get("byte_fallback") and text == model.get("unk_token"):
        return _UNKNOWN
    if text in added:
        return _CONTROL if added[text].get("special") else _USER_DEFINED
    is_byte = model.get("byte_fallback") and _BYTE_PIECE.fullmatch(text)
    return _BYTE if is_byte else _NORMAL


def _steps(content: dict[str, Any], num_rows: int) -> dict[str, Any]:
    """How text is cut and merged."""
    model = content["model"]
    merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m) for m in model["merges"]]
    if model.get("byte_fallback"):
        kinds = [step["type"] for step in _flat(content.get("normalizer"))]
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.scores": _scores(model["vocab"], merges, num_rows),
            "tokenizer.ggml.add_space_prefix": "Prepend" in kinds,
        }
    cut = _plain(content.get("pre_tokenizer"))
    steps = cut["pretokenizers"] if cut and cut["type"] == "Sequence" else [cut]
    whole_words = bool(model.get("ignore_merges"))
    for name, wanted in PRE_TOKENIZERS.items():
        # Two names may cut alike, and differ in whether a word that is a token is taken apart.
        if steps == _plain(wanted) and whole_words == (name == LLAMA_BPE):
            return {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": name,
                "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
            }
    raise InputError(
        f"{_FILE}: text is cut in a way that has no name in gguf files; known:"
        f" {', '.join(PRE_TOKENIZERS)}. Remove the file to write one without tokenizer."
    )


def _scores(
    numbers: Mapping[str, int], merges: list[tuple[str, ...]], num_rows: int
) -> list[float]:
    """Pieces are merged by score: the earlier a piece is merged, the higher."""
    scores = [0.0] * num_rows
    ranked: dict[str, int] = {}
    for pair in merges:
        ranked.setdefault("".join(pair), len(ranked))
    for piece, number in numbers.items():
        if not _BYTE_PIECE.fullmatch(piece):
            scores[number] = -float(ranked.get(piece, len(ranked)))
    return scores


def _special(content: dict[str, Any], further: dict[str, Any], config: Any) -> dict[str, Any]:
    """Numbers of special tokens, and whether a text begins with one."""
    numbers = dict(content["model"]["vocab"])
    numbers |= {entry["content"]: entry["id"] for entry in content.get("added_tokens", [])}
    settings: dict[str, Any] = {}
    for name, key in SPECIAL.items():
        text = further.get(name)
        text = text.get("content") if isinstance(text, dict) else text
        number = numbers.get(text) if text is not None else None
        if number is None and name != "unk_token":
            number = getattr(config, f"{name}_id", None)
            number = number[0] if isinstance(number, list) else number
        if isinstance(number, int):
            settings[f"tokenizer.ggml.{key}"] = number
    first = _first_of_every_text(content.get("post_processor"))
    settings["tokenizer.ggml.add_bos_token"] = first is not None
    if first is not None:
        settings["tokenizer.ggml.bos_token_id"] = numbers[first]
    return settings


def _first_of_every_text(step: Any) -> str | None:
    """The token that a post-processor puts before a text; nothing may be put behind one."""
    if step is None or step["type"] == "ByteLevel":
        return None
    if step["type"] == "Sequence":
        found = [_first_of_every_text(part) for part in step["processors"]]
        return next((text for text in found if text is not None), None)
    pieces = step["single"] if step["type"] == "TemplateProcessing" else []
    kinds = [next(iter(piece)) for piece in pieces]
    if kinds == ["Sequence"]:
        return None
    if kinds != ["SpecialToken", "Sequence"]:
        raise InputError(
            f"{_FILE}: its post-processor {step['type']!r} adds more than a first token, which gguf"
            " files cannot say. Remove the file to write one without tokenizer."
        )
    return str(pieces[0]["SpecialToken"]["id"])


def _check_same(content: dict[str, Any], settings: dict[str, Any]) -> None:
    """The tokenizer that a reader makes of the settings must be the one that was given."""
    again = tokenizer_content(settings, _FILE)
    numbers = content["model"]["vocab"]
    read = {text: n for text, n in again["model"]["vocab"].items() if text in numbers}
    wrong = [] if read == numbers else ["pieces"]
    # Pairs with the same union are tried in the order of their places, whatever their order here.
    one, two = (_unions(made["model"]["merges"]) for made in (content, again))
    wrong += [] if one == two else ["merges"]
    for step in ("normalizer", "pre_tokenizer", "decoder"):
        given, made = _flat(content.get(step)), _flat(again[step])
        if step == "decoder":
            given, made = ([_decoding(part) for part in parts] for parts in (given, made))
        wrong += [] if given == made else [step]
    if wrong:
        raise InputError(
            f"{_FILE}: its {', '.join(wrong)} would be others in a gguf file. Remove the file to"
            " write one without tokenizer."
        )


def _unions(merges: list[Any]) -> list[str]:
    pairs = [m.split(" ") if isinstance(m, str) else m for m in merges]
    return list(dict.fromkeys("".join(pair) for pair in pairs))


def _flat(step: Any) -> list[Any]:
    """Steps without the sequences around them."""
    step = _plain(step)
    if step is None:
        return []
    if isinstance(step, dict) and step.get("type") == "Sequence":
        inside = next(value for key, value in step.items() if key != "type")
        return [part for each in inside for part in _flat(each)]
    return [step]


def _decoding(part: dict[str, Any]) -> Any:
    """A step of a decoder; that of bytes looks at none of its options."""
    return "ByteLevel" if part.get("type") == "ByteLevel" else part


def _plain(value: Any) -> Any:
    """A step without what changes no token."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items() if key not in _SILENT}
    return [_plain(part) for part in value] if isinstance(value, list) else value
