# SPDX-License-Identifier: Apache-2.0
"""MiniLM out of its installed package; nothing is downloaded."""

from collections import namedtuple

from gossamer.cli.models import demo_path
from gossamer.io import load_pretrained, read_beside
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, make_tokenizer

MiniLM = namedtuple("MiniLM", "model tokenizer directory")


def load_minilm():
    """The dense encoder, its tokenizer and the directory both came from."""
    directory = demo_path("minilm")
    tokenizer = make_tokenizer(read_beside(directory).get(TOKENIZER_FILE))
    return MiniLM(load_pretrained(directory), tokenizer, directory)
