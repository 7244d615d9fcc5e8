# SPDX-License-Identifier: Apache-2.0
"""Files beside the weights of a model: its card, its configuration, its tokenizer.

`BESIDE_FILES` are carried along by `gossamer.save`, hashed and never read; `COMPANIONS` may lie
there as well without being part of the artifact.
"""

from gossamer.io.safe_files import MAX_MANIFEST_BYTES

__all__ = [
    "BESIDE_FILES",
    "CARD_FILE",
    "COMPANIONS",
    "CONFIG_FILE",
    "REPORT_FILE",
    "SIGNPOST",
    "SIGNPOST_FILE",
    "beside_limit",
]

CARD_FILE = "card.md"
CONFIG_FILE = "config.json"
REPORT_FILE = "report.json"
# Other tools take a packed artifact of a transformers model for a checkpoint, because of its
# config.json, and say that files are missing. This index leads them to a file whose name says what
# to do, and there is none of that name: their error shows it, and no weight is made up.
SIGNPOST_FILE = "model.safetensors.index.json"
_DIRECTIONS = (
    "this is a gossamer artifact - read it with gossamer.load - or make a copy for transformers -"
    " gossamer convert ARTIFACT COPY --format dense.safetensors"
)
SIGNPOST = {"metadata": {"total_size": 0}, "weight_map": {"weights": _DIRECTIONS}}
# What a model needs beside its weights to be used. Carried along as bytes and hashed, never read.
BESIDE_FILES = frozenset(
    {
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config_sentence_transformers.json",
        "features.arrays",
        "generation_config.json",
        "graph.json",
        "merges.txt",
        "modules.json",
        "normalizer.json",
        "pooling_config.json",
        "preprocessor_config.json",
        "processor_config.json",
        "sentence_bert_config.json",
        "sentencepiece.bpe.model",
        "source.spm",
        "special_tokens_map.json",
        "spiece.model",
        "spm.model",
        "target.spm",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
        "vocab.txt",
    }
)
# Files that people and other tools put beside a model; those the manifest lists are verified, the
# others are never opened by a reader.
COMPANIONS = BESIDE_FILES | {CARD_FILE, ".gitattributes", "README.md"}
# Vocabularies of click logs: 8 bytes for each of at most 2^31 rows of a table.
_LARGE = {"features.arrays": 2**34}


def beside_limit(name: str) -> int:
    """Most bytes of a file beside the weights."""
    return _LARGE.get(name, MAX_MANIFEST_BYTES)
