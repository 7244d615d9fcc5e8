# SPDX-License-Identifier: Apache-2.0
"""The tokenizer in a gguf file, as the files that transformers reads.

Byte-level BPE: how text is cut before merging is a name in the file; it is looked up in a closed
table, because a wrong cut gives other tokens without any error. Sentencepiece models merge by
scores, and spell what they do not know in bytes (`sentencepiece.py`).
"""

import json
import os
from typing import Any

from gossamer.errors import ArtifactError
from gossamer.io.gguf.header import GgufHeader, open_gguf
from gossamer.io.gguf.sentencepiece import BLANK, sentencepiece_steps
from gossamer.io.safe_files.documents import pretty_json

_BYTE_LEVEL_MODEL, _SENTENCEPIECE = "gpt2", "llama"
_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
_DIGITS = [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]


def _cut_by_words(digits: str) -> list[dict[str, Any]]:
    """Contractions, words with one sign before them, so many digits, signs, white space."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return [split | {"invert": False}, _BYTE_LEVEL | {"use_regex": False}]


# Name in the file to the steps of the pre-tokenizer.
LLAMA_BPE = "llama-bpe"
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(("smollm", "refact"), _DIGITS),
    **{name: [_BYTE_LEVEL] for name in ("gpt-2", "olmo")},
    **{name: _cut_by_words(r"\p{N}{1,3}") for name in (LLAMA_BPE, "dbrx", "smaug-bpe")},
    "qwen2": _cut_by_words(r"\p{N}"),
}
_CONTROL, _USER_DEFINED = 3, 4
TEMPLATE = "tokenizer.chat_template"
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def gguf_tokenizer_files(path: os.PathLike[str] | str) -> dict[str, bytes]:
    """`tokenizer.json` and `tokenizer_config.json` of the tokenizer in a gguf file."""
    file, header = open_gguf(path)
    file.close()
    return tokenizer_files(header, str(path))


def tokenizer_files(header: GgufHeader, where: str) -> dict[str, bytes]:
    """The same for a header that was read."""
    settings = header.settings
    model, cut = (settings.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    is_known = model == _SENTENCEPIECE or (model == _BYTE_LEVEL_MODEL and cut in PRE_TOKENIZERS)
    if not is_known:
        raise ArtifactError(
            f"{where}: tokenizer {ascii(model)[:40]} with pre-tokenizer {ascii(cut)[:40]} cannot be"
            f" read; known: {_SENTENCEPIECE!r}, {_BYTE_LEVEL_MODEL!r} with"
            f" {', '.join(map(repr, PRE_TOKENIZERS))}. Put the tokenizer.json of the model in the"
            " folder of the file."
        )
    tokens = _texts(settings, "tokenizer.ggml.tokens", where)
    content = tokenizer_content(settings, where)
    return {
        "tokenizer.json": json.dumps(content, ensure_ascii=False).encode("utf-8"),
        "tokenizer_config.json": _config(settings, tokens, where),
    }


def tokenizer_content(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """What tokenizer.json says, for the settings of a file."""
    tokens = _texts(settings, "tokenizer.ggml.tokens", where)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ArtifactError(f"{where}: a token appears twice in tokenizer.ggml.tokens.")
    if settings["tokenizer.ggml.model"] == _SENTENCEPIECE:
        steps = sentencepiece_steps(settings, vocabulary, where)
    else:
        steps = _byte_level_steps(settings, vocabulary, where)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, settings, where),
        "post_processor": _post_processor(settings, tokens, where),
        **steps,
    }


def _byte_level_steps(
    settings: dict[str, Any], vocabulary: dict[str, int], where: str
) -> dict[str, Any]:
    """Every byte is a sign of its own, so that there is nothing that is not known."""
    cut = settings["tokenizer.ggml.pre"]
    return {
        "normalizer": {"type": "NFC"} if cut == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[cut]},
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": cut == LLAMA_BPE,  # a word that is a token is never taken apart
            "vocab": vocabulary,
            "merges": _merges(vocabulary, settings, where),
        },
    }


def _config(settings: dict[str, Any], tokens: list[str], where: str) -> bytes:
    content: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    context = settings.get(f"{settings.get('general.architecture')}.context_length")
    if type(context) is int:
        content["model_max_length"] = context
    for name, key in SPECIAL.items():
        number = _special(settings, key, tokens, where)
        if number is not None:
            content[name] = tokens[number]
    # Text for whoever formats chats; it is not looked into here.
    template, further = settings.get(TEMPLATE), settings.get(f"{TEMPLATE}s")
    names = further if isinstance(further, list) else []
    named = {name: settings.get(f"{TEMPLATE}.{name}") for name in names}
    if isinstance(template, str) and named:
        named = {"default": template, **named}
        content["chat_template"] = [{"name": n, "template": t} for n, t in named.items()]
    elif isinstance(template, str):
        content["chat_template"] = template
    return pretty_json(content)


def _special(settings: dict[str, Any], key: str, tokens: list[str], where: str) -> int | None:
    """The number of a special token, where there is one."""
    number = settings.get(f"tokenizer.ggml.{key}")
    if number is not None and (type(number) is not int or not 0 <= number < len(tokens)):
        raise ArtifactError(
            f"{where}: tokenizer.ggml.{key} is {ascii(number)[:40]}, but there are {len(tokens)}"
            " tokens."
        )
    return number


def _post_processor(
    settings: dict[str, Any], tokens: list[str], where: str
) -> dict[str, Any] | None:
    """Puts the first token before every text, where the file says so; Llamas do unless told."""
    usual = (
        settings["tokenizer.ggml.model"] == _SENTENCEPIECE
        or settings.get("tokenizer.ggml.pre") == LLAMA_BPE
    )
    if not settings.get("tokenizer.ggml.add_bos_token", usual):
        return None
    number = _special(settings, "bos_token_id", tokens, where)
    if number is None:
        return None
    first = {"SpecialToken": {"id": tokens[number], "type_id": 0}}
    one, two = ({"Sequence": {"id": name, "type_id": at}} for at, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [first, one],
        "pair": [first, one, two],
        "special_tokens": {
            tokens[number]: {"id": tokens[number], "ids": [number], "tokens": [tokens[number]]}
        },
    }


def _merges(vocabulary: dict[str, int], settings: dict[str, Any], where: str) -> list[list[str]]:
    merges = []
    for number, text in enumerate(_texts(settings, "tokenizer.ggml.merges", where)):
        parts = text.split(" ")
        if (
            len(parts) != 2
            or parts[0] not in vocabulary
            or parts[1] not in vocabulary
            or parts[0] + parts[1] not in vocabulary
        ):
            raise ArtifactError(
                f"{where}: tokenizer.ggml.merges[{number}] {text[:40]!a} must be two tokens whose"
                " union is a token."
            )
        merges.append(parts)
    return merges


def _added(tokens: list[str], settings: dict[str, Any], where: str) -> list[dict[str, Any]]:
    kinds = settings.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list) or len(kinds) not in (0, len(tokens)):
        raise ArtifactError(f"{where}: tokenizer.ggml.token_type must have one entry per token.")
    return [
        {
            "id": number,
            "content": tokens[number],
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "special": kind == _CONTROL,
        }
        for number, kind in enumerate(kinds)
        # Runs of blanks are merged like other pieces: no text has them as they are written.
        if kind == _CONTROL or (kind == _USER_DEFINED and BLANK not in tokens[number])
    ]


def _texts(settings: dict[str, Any], key: str, where: str) -> list[str]:
    value = settings.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ArtifactError(f"{where}: {key} is missing or no list of texts.")
    return value
