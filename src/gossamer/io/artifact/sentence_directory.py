# SPDX-License-Identifier: Apache-2.0
"""An encoder as a directory of sentence-transformers: dense weights, and no manifest."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.io.artifact.beside import CONFIG_FILE
from gossamer.io.artifact.destination import check_replaceable
from gossamer.io.artifact.inventory import as_stored, take_inventory, unwrap
from gossamer.io.artifact.manifest import WHOLE
from gossamer.io.artifact.packing import BYTES_PER_PIECE, Arrays, plan_pieces
from gossamer.io.huggingface import config_of
from gossamer.io.huggingface.sentences import POOLING_FILE, folders_of, sentences_of
from gossamer.io.pruners.plain_checkpoint import SINGLE_FILE
from gossamer.io.safe_files.directories import AnyPath, replace_directory
from gossamer.io.safe_files.documents import pretty_json
from gossamer.io.safe_files.tensors import write_file

__all__ = ["save_sentence_transformers"]


def save_sentence_transformers(
    model: nn.Module, path: AnyPath, *, beside: Mapping[str, bytes]
) -> Path:
    """Write what `SentenceTransformer(path)` reads, zeros included; whole or not at all.

    Args:
        model: an encoder of transformers, in whatever form.
        path: a directory that does not exist, is empty, or holds an artifact.
        beside: the files beside the model that was read; see `gossamer.io.read_beside`.

    Raises:
        InputError: not an encoder of transformers, or the files are not those of
            sentence-transformers.
    """
    stored = as_stored(unwrap(model))
    config = config_of(stored)
    if config is None or sentences_of(beside) is None:
        raise InputError(
            f"{type(model).__name__}: a directory of sentence-transformers needs a model of"
            " transformers and the modules.json of one. Use the format 'dense' instead."
        )
    pieces, _ = plan_pieces(take_inventory(stored), "dense")
    needed = sum(piece.num_bytes + BYTES_PER_PIECE for piece in pieces)
    files = {name: raw for name, raw in beside.items() if name != POOLING_FILE}
    files[CONFIG_FILE] = pretty_json(config)
    with replace_directory(path, needed, check_replaceable) as folder, torch.no_grad():
        arrays: Arrays = {piece.name: piece.pack(SINGLE_FILE)[0][WHOLE] for piece in pieces}
        write_file(folder / SINGLE_FILE, arrays)
        for name, raw in files.items():
            write_file(folder / name, raw)
        for name, inside in folders_of(beside).items():
            (folder / name).mkdir()
            for file, raw in inside.items():
                write_file(folder / name / file, raw)
    return Path(path)
