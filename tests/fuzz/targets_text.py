# SPDX-License-Identifier: Apache-2.0
"""Tokenizers and what else lies beside a model."""

import copy
import json
import random
from pathlib import Path
from typing import Any

from mutations import Files, change_files, change_value
from target import TEXTS, target

# Parts that tokenizer.json knows, with settings that break careless code.
PARTS: dict[str, list[Any]] = {
    "normalizer": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"},
        {"type": "Replace", "pattern": {"Regex": "(a|a)*b"}, "content": "x" * 50},
        {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 30,
        },
        {"type": "Prepend", "prepend": "x" * 100},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "StripAccents"},
        {"type": "ByteLevel"},
        {"type": "NFKD"},
        {"type": "Nmt"},
        None,
    ],
    "pre_tokenizer": [
        {"type": "Split", "pattern": {"Regex": "(?:)"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Removed", "invert": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": "", "prepend_scheme": "always", "split": True},
        {"type": "CharDelimiterSplit", "delimiter": "e"},
        {"type": "FixedLength", "length": 0},
        {"type": "UnicodeScripts"},
        {"type": "Whitespace"},
        {"type": "Sequence", "pretokenizers": []},
        None,
    ],
    "post_processor": [
        {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        },
        {"type": "BertProcessing", "sep": ["[SEP]", 2**31], "cls": ["[CLS]", 0]},
        {
            "type": "RobertaProcessing",
            "sep": ["s", 1],
            "cls": ["c", 2],
            "trim_offsets": True,
            "add_prefix_space": True,
        },
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Sequence", "processors": []},
        None,
    ],
    "decoder": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "WordPiece", "prefix": "", "cleanup": True},
        {"type": "ByteFallback"},
        {"type": "Strip", "content": " ", "start": 2**31, "stop": 2**31},
        {"type": "Fuse"},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "BPEDecoder", "suffix": ""},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100},
        None,
    ],
    "truncation": [
        {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0},
        {"direction": "Left", "max_length": 2, "strategy": "OnlyFirst", "stride": 5},
        None,
    ],
    "padding": [
        {
            "strategy": {"Fixed": 2**40},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "x",
        },
        None,
    ],
    "model": [
        {
            "type": "BPE",
            "dropout": 0.5,
            "unk_token": "x",
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {"a": 0, "b": 2**31},
            "merges": [["a", "b"]],
        },
        {"type": "Unigram", "unk_id": 7, "vocab": [["a", -1.0]], "byte_fallback": True},
        {"type": "Unigram", "unk_id": None, "vocab": [], "byte_fallback": False},
        {
            "type": "WordPiece",
            "unk_token": "none",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 0,
            "vocab": {"a": 5},
        },
        {"type": "WordLevel", "vocab": {}, "unk_token": "x"},
    ],
}


def change_tokenizer(files: Files, draw: random.Random) -> Files:
    """Parts of other tokenizers put in, so that most cases are read and used; or any change."""
    content = json.loads(files["tokenizer.json"])
    if draw.random() < 0.4:
        return change_files(files, draw)
    for _ in range(draw.choice((1, 1, 2, 3))):
        part = draw.choice(sorted(PARTS))
        chosen = copy.deepcopy(draw.choice(PARTS[part]))
        content[part] = change_value(chosen, draw) if draw.random() < 0.5 else chosen
    return {"tokenizer.json": json.dumps(content).encode("utf-8", "surrogatepass")}


def tokenizer_seeds(folder: Path) -> None:
    from text_models import byte_tokenizer, word_tokenizer
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    unknown = "[UNK]"
    pieces = Tokenizer(
        models.WordPiece({unknown: 0, "the": 1, "dog": 2, "##s": 3, "[CLS]": 4}, unk_token=unknown)
    )
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    pieces.post_processor = processors.BertProcessing(("[UNK]", 0), ("[CLS]", 4))
    pieces.enable_truncation(8)
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("▁the", -2.0)], 0))
    unigram.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("  ", " "), normalizers.Lowercase()]
    )
    unigram.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(), pre_tokenizers.Punctuation()]
    )
    unigram.decoder = decoders.Sequence([decoders.Metaspace(), decoders.Strip(" ", 1, 1)])
    made = {"words": word_tokenizer(), "bytes": byte_tokenizer(), "p": pieces, "u": unigram}
    for name, tokenizer in made.items():
        (folder / name).mkdir()
        tokenizer.save(str(folder / name / "tokenizer.json"))


@target(
    "tokenizer",
    tokenizer_seeds,
    "io/safe_files/tokenizer.py",
    "running/text/special_tokens.py:cut checked",
    change=change_tokenizer,
)
def read_tokenizer(folder: Path) -> object:
    from types import SimpleNamespace

    from gossamer.io import read_beside
    from gossamer.running.text import TextPieces, TextTokens

    config = SimpleNamespace(max_position_embeddings=48, vocab_size=257, model_type="bert")
    tokens = TextTokens(read_beside(folder), config)
    pieces = TextPieces(tokens.tokenizer)
    ids, _ = tokens.cut(TEXTS)
    return [pieces.add(int(number)) for row in ids for number in row]


def beside_seeds(folder: Path) -> None:
    from text_models import TEMPLATE

    (folder / "a").mkdir()
    config = {
        "eos_token": {"content": "</s>"},
        "bos_token": "<s>",
        "model_max_length": 1e30,
        "chat_template": [{"name": "default", "template": TEMPLATE}, {"name": "b", "template": ""}],
        "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
    }
    (folder / "a" / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "a" / "generation_config.json").write_text('{"eos_token_id": [1, 2], "top_p": 0.9}')
    (folder / "b").mkdir()
    (folder / "b" / "chat_template.jinja").write_text(TEMPLATE)


@target(
    "chat-template",
    beside_seeds,
    "io/safe_files/documents.py:parse_json",
    "running/text/chat/chat_template.py:_read _template _special_tokens end_tokens",
)
def read_chat(folder: Path) -> object:
    from types import SimpleNamespace

    from text_models import byte_tokenizer

    from gossamer.io import read_beside
    from gossamer.running.text.chat import ChatTemplate, end_tokens

    beside = read_beside(folder)
    end_tokens(beside, SimpleNamespace(eos_token_id=3), byte_tokenizer())
    return bool(ChatTemplate(beside))
