# SPDX-License-Identifier: Apache-2.0
"""Recipes, descriptions of clusters, texts and images."""

import json
import tempfile
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
    "io/safe_files/arrays.py",
    "data/files/image_files.py",
)
def read_image_data(folder: Path) -> object:
    from gossamer.data.files import read_images

    path = folder / "m.npz"
    if not path.exists():
        return read_images(folder, split=True)
    tried(lambda: read_images(path, split=True))
    return read_images(path)


def graph_seeds(folder: Path) -> None:
    edges, labels = np.array([[0, 1], [1, 2], [2, 0]]), np.array([0, 1, -1])
    words = {"x_indptr": np.array([0, 1, 2, 2]), "x_indices": np.array([1, 0])}
    for name in ("plain", "words", "pairs", "tables", "links"):
        (folder / name).mkdir()
    np.savez(folder / "plain" / "g.npz", edges=edges, x=np.eye(3), y=labels, train=edges[0, :1])
    np.savez(
        folder / "words" / "g.npz", indptr=np.arange(4), indices=edges[:, 0], y=labels, **words
    )
    starts = {"train_indptr": np.array([0, 1, 3]), "train_indices": np.array([0, 0, 1])}
    np.savez(folder / "pairs" / "pairs.npz", shape=np.array([2, 2]), **starts)
    (folder / "tables" / "nodes.csv").write_text("node,label,a\nx,0,1.5\ny,1,2\n")
    (folder / "tables" / "edges.csv").write_text("source,target,weight\nx,y,2\n")
    (folder / "links" / "pairs.csv").write_text("user,item,split\n1,a,train\n2,b,test\n")


@target(
    "graphs",
    graph_seeds,
    "data/graphs/nodes.py",
    "data/graphs/links.py",
    "data/files/table_files.py",
)
def read_graph_data(folder: Path) -> object:
    from gossamer.data.graphs import GraphRules, read_links, read_nodes

    rules = GraphRules(validation=0.0, test=0.0)
    if (folder / "nodes.csv").exists():
        return read_nodes(folder, rules).graph
    path = only(folder)
    if path.stem == "pairs":
        return read_links(path, rules).graph
    tried(lambda: read_links(path, rules))
    return read_nodes(path, rules).graph


def click_columns() -> dict:
    several = {"name": "tags", "columns": ["tags"], "ids": "vocabulary", "separator": "|"}
    return {
        "format": "table",
        "label": "click",
        "numbers": ["n"],
        "categories": [{"name": "a x b", "columns": ["a", "b"], "size": 9}, several],
        "bad_rows": 0.5,
        "nan": "missing",
    }


def click_log_seeds(folder: Path) -> None:
    rows = [
        (i % 2, i * 1.5 - 4, f"a{i % 3}", f"b{i % 4}", "x|y" if i % 2 else "") for i in range(30)
    ]
    for suffix, sign in ((".csv", ","), (".tsv", "\t")):
        (folder / suffix[1:]).mkdir()
        lines = [sign.join(("click", "n", "a", "b", "tags"))]
        lines += [sign.join(map(str, row)) for row in rows]
        (folder / suffix[1:] / f"log{suffix}").write_text("\n".join(lines) + "\n")
    names = ("click", "n", "a", "b", "tags")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (folder / "jsonl").mkdir()
    (folder / "jsonl" / "log.jsonl").write_text("\n".join(lines) + "\n")


@target(
    "click-log",
    click_log_seeds,
    "data/clicks/table_files.py",
    "data/clicks/rows.py",
    "data/clicks/cache.py",
)
def read_click_log(folder: Path) -> object:
    from gossamer.data.clicks import ClickBatches, columns_of, open_clicks

    path = only(folder)
    with tempfile.TemporaryDirectory() as scratch:
        data = open_clicks(Path(scratch) / "arrays", columns_of(click_columns()), path)
        return ClickBatches(data.parts["train"], 2, 0, 8)[1].inputs()


def feature_seeds(folder: Path) -> None:
    from gossamer.data.clicks import columns_of, open_clicks

    with tempfile.TemporaryDirectory() as scratch:
        click_log_seeds(Path(scratch))
        log = Path(scratch) / "csv" / "log.csv"
        data = open_clicks(Path(scratch) / "arrays", columns_of(click_columns()), log)
        (folder / "one").mkdir()
        (folder / "one" / "features.arrays").write_bytes(data.features.content)


@target(
    "features",
    feature_seeds,
    "data/clicks/features.py:read_features",
    "data/clicks/columns.py",
)
def read_feature_file(folder: Path) -> object:
    from gossamer.data.clicks import read_features

    features = read_features((folder / "features.arrays").read_bytes(), "model")
    row = dict.fromkeys(features.columns.inputs, "1")
    return tried(lambda: features.read_objects([row], "rows").inputs())
