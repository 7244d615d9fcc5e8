# SPDX-License-Identifier: Apache-2.0
"""Models of other tools: Hugging Face directories, compressed-tensors, gguf."""

import copy
import random
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from mutations import Files, change_bytes, change_files, scalar
from target import target, tried

import gossamer


def huggingface_seeds(folder: Path) -> None:
    from cells import make
    from model_rows import ARCHITECTURES
    from text_models import save_classifier, save_decoder, save_encoder
    from transformers import GPT2Config, GPT2LMHeadModel

    save_encoder(folder / "encoder")
    save_classifier(folder / "classifier")
    save_decoder(folder / "decoder")
    config = GPT2Config(
        vocab_size=30,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=2,
    )
    GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
    # Families that are in no table of ours.
    for title in ("Qwen3", "Gemma 3", "T5", "ViT", "CLIP", "Mamba"):
        row = next(row for row in ARCHITECTURES if row.title == title)
        make(row).save_pretrained(folder / row.model)
    for path in folder.glob("*/generation_config.json"):
        path.unlink()


def config_and_weights(files: Files, draw: random.Random) -> Files:
    """What the model reader looks at; the configuration most of the time."""
    keep = {name: raw for name, raw in files.items() if name.endswith((".safetensors", "fig.json"))}
    if draw.random() < 0.6:
        changed = change_files({"config.json": keep["config.json"]}, draw)
        return {**keep, **changed}
    return change_files(keep, draw)


@target(
    "huggingface",
    huggingface_seeds,
    "io/huggingface/directory.py",
    "io/huggingface/transformers_models.py",
    "io/huggingface/auto_tables.py",
    "io/huggingface/configurations.py",
    "io/huggingface/trial_run.py",
    change=config_and_weights,
)
def read_huggingface(folder: Path) -> object:
    from gossamer.io import load_pretrained
    from gossamer.io.huggingface import example_inputs

    model: Any = load_pretrained(folder)
    with torch.no_grad():
        # What loads must run.
        return model(**example_inputs(model, 2))[0]


def compressed_seeds(folder: Path) -> None:
    from text_models import save_decoder

    from gossamer.io import load_pretrained
    from gossamer.io.artifact import save_compressed_tensors

    save_decoder(folder / "source")
    model = load_pretrained(folder / "source")
    gossamer.sparsify(model, sparsity=0.5)
    save_compressed_tensors(model, folder / "compressed")
    for path in (folder / "source").iterdir():
        path.unlink()
    (folder / "source").rmdir()


def headers_first(files: Files, draw: random.Random) -> Files:
    """Quantisation settings and tensor headers."""
    name = draw.choice(("config.json", "model.safetensors", "model.safetensors"))
    return {**files, **change_files({name: files[name]}, draw)}


@target(
    "compressed-tensors",
    compressed_seeds,
    "io/pruners/compressed_tensors.py",
    change=headers_first,
)
def read_compressed(folder: Path) -> object:
    from gossamer.io.huggingface.directory import _read_config
    from gossamer.io.pruners.compressed_tensors import expand_bitmasks
    from gossamer.io.pruners.plain_checkpoint import read_tensors_of

    tensors = read_tensors_of(folder)
    return expand_bitmasks(tensors, _read_config(folder), str(folder))


def gguf_seeds(folder: Path) -> None:
    from gguf_tools import tiny_gguf

    (folder / "llama").mkdir()
    tiny_gguf().write(folder / "llama" / "m.gguf")


_GGUF: list[Any] = []


def change_gguf(files: Files, draw: random.Random) -> Files:
    """Settings, types, shapes and offsets in a file that is whole again; or its first bytes."""
    from gguf_tools import tiny_gguf

    if draw.random() < 0.4:
        raw = files["m.gguf"]
        return {"m.gguf": change_bytes(raw[:6000], draw) + raw[6000:]}
    if not _GGUF:
        _GGUF.append(tiny_gguf())
    made = copy.deepcopy(_GGUF[0])
    for _ in range(draw.choice((1, 1, 2))):
        _change_gguf_field(made, draw)
    try:
        return {"m.gguf": b"".join(made.header_and_data())}
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError, IndexError):
        return {"m.gguf": change_bytes(files["m.gguf"], draw)}
    except Exception as error:
        if type(error).__name__ == "error":  # struct.error: a value that its type cannot hold
            return {"m.gguf": change_bytes(files["m.gguf"], draw)}
        raise


def _change_gguf_field(made: Any, draw: random.Random) -> None:
    key = draw.choice(sorted(made.settings))
    tensor = draw.choice(made.tensors)
    kind = draw.randrange(8)
    if kind < 3:
        code, value, *of = made.settings[key]
        if isinstance(value, list):
            value = list(value)
            place = draw.randrange(len(value))
            new = scalar(draw)
            value[place] = new if draw.random() < 0.5 else value[0]
            if draw.random() < 0.3:
                del value[place:]
        else:
            value = scalar(draw)
        made.settings[key] = (code, value, *of)
    elif kind == 3:
        del made.settings[key]
    elif kind == 4:
        sizes = list(tensor.shape)
        sizes[draw.randrange(len(sizes))] = draw.choice((0, 1, 31, 64, 2**20, 2**40, 2**63))
        tensor.shape = tuple(sizes)
    elif kind == 5:
        tensor.kind = draw.choice((0, 1, 2, 3, 8, 12, 14, 30, 99))
    elif kind == 6:
        tensor.offset = draw.choice((0, 1, 32, 2**20, 2**63))
    else:
        tensor.name = draw.choice((made.tensors[0].name, "x", "", "..", "blk.0.attn_q.weight"))


@target("gguf", gguf_seeds, "io/gguf/*.py", change=change_gguf)
def read_gguf(folder: Path) -> object:
    from gossamer.io import load_gguf, read_beside

    path = folder / "m.gguf"
    # Both read the header; a fault of the one must not hide the other.
    tried(lambda: read_beside(path))
    if zlib.crc32(path.read_bytes()) % 20 == 0:
        return load_gguf(path)
    # Building the model is the reader of Hugging Face directories, and takes most of the time.
    with patch("gossamer.io.huggingface.from_tensors"):
        return load_gguf(path)
