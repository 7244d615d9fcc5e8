# SPDX-License-Identifier: Apache-2.0
"""Recipes, descriptions of clusters, texts and images."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from target import SOURCE, only, target, tried


def yaml_seeds(part: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for path in sorted((SOURCE / part).rglob("*.yaml")):
            (folder / path.stem).mkdir()
            (folder / path.stem / "r.yaml").write_bytes(path.read_bytes())

    return write


@target(
    "recipe",
    yaml_seeds("recipes"),
    "recipes/loader.py",
    "recipes/yaml_lines.py",
    "recipes/wording.py",
)
def read_recipe(folder: Path) -> object:
    from gossamer.recipes import load_recipe

    return load_recipe(folder / "r.yaml")


@target(
    "cluster",
    yaml_seeds("planner"),
    "planner/cluster.py",
    "recipes/yaml_lines.py",
)
def read_cluster(folder: Path) -> object:
    from gossamer.planner import load_cluster

    return load_cluster(folder / "r.yaml")


def sample_seeds(folder: Path) -> None:
    from safetensors.torch import save_file

    def put(name: str, text: str) -> None:
        (folder / name.replace(".", "-")).mkdir()
        (folder / name.replace(".", "-") / name).write_text(text)

    put("a.txt", "one line\ntwo lines\n\nand more\n")
    put("b.jsonl", '{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n')
    put("c.jsonl", '{"text_a": "x", "text_b": "y", "score": 3.5}\n{"text": "plain"}\n')
    put("d.csv", 'text_a,text_b,score\n"a, b",c,1.5\nd,e,2\n')
    put("e.tsv", "sentence\tlabel\none\t0\ntwo\t1\n")
    (folder / "ids").mkdir()
    save_file({"input_ids": torch.arange(12).view(3, 4)}, folder / "ids" / "f.safetensors")


@target(
    "samples",
    sample_seeds,
    "data/files/text_files.py",
)
def read_sample_file(folder: Path) -> object:
    from gossamer.data.files import read_labelled, read_samples

    path = only(folder)
    if path.suffix in (".jsonl", ".csv", ".tsv"):
        tried(lambda: read_labelled(path))
    found = read_samples(path, labelled=True)
    # Texts go to tokenizers and files.
    return "\n".join(found.texts).encode("utf-8")


def image_seeds(folder: Path) -> None:
    pixels = (np.arange(5 * 16, dtype=np.uint8) * 3).reshape(5, 4, 4)
    labels = np.arange(5) % 3
    parts = {"x_train": pixels, "y_train": labels, "x_test": pixels / 255.0, "y_test": labels}
    for name in ("packed", "plain", "small", "idx"):
        (folder / name).mkdir()
    np.savez_compressed(folder / "packed" / "m.npz", **parts)
    np.savez(folder / "plain" / "m.npz", **parts)
    np.savez(folder / "small" / "m.npz", x=pixels[:, None].astype(np.float32), y=labels)
    start = b"\0\0\x08"
    for kind in ("train", "t10k"):
        head = start + b"\3" + b"".join(size.to_bytes(4, "big") for size in pixels.shape)
        (folder / "idx" / f"{kind}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = start + b"\1" + (5).to_bytes(4, "big")
        (folder / "idx" / f"{kind}-labels-idx1-ubyte").write_bytes(
            head + labels.astype(np.uint8).tobytes()
        )


@target(
    "images",
    image_seeds,
    "io/safe_files/arrays/__init__.py",
    "data/files/image_files.py",
)
def read_image_data(folder: Path) -> object:
    from gossamer.data.files import read_images

    path = folder / "m.npz"
    if not path.exists():
        return read_images(folder, split=True)
    tried(lambda: read_images(path, split=True))
    return read_images(path)
