# SPDX-License-Identifier: Apache-2.0
"""The corpus of hostile artifacts: each case changes a good one, digests recomputed to match.

`python hostile_files.py FOLDER` tries to load every artifact below FOLDER and reports, as JSON,
what each one raised and by how much the memory of the process grew.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "io"))

from artifact_tools import edit_manifest, join_tensors, rehash, sparse_linear, split_tensors

from gossamer.errors import GossamerError
from gossamer.io import load, save
from gossamer.io.safe_files.documents import pretty_json

Change = Callable[[Path], None]
TENSORS = "packed-00001-of-00001.safetensors"
KEY = "0.bias"


def make_good(folder: Path) -> None:
    save(nn.Sequential(sparse_linear("bitmask", "masked")), folder)


# Tensor headers (F11).


def header(change: Callable[[dict[str, Any]], Any], *, tail: bytes = b"") -> Change:
    """Edit the parsed header; the change may return a new one, or raw bytes for its body."""

    def apply(folder: Path) -> None:
        path = folder / TENSORS
        content, data = split_tensors(path.read_bytes())
        result = change(content)
        path.write_bytes(join_tensors(content if result is None else result, data + tail))
        rehash(folder)

    return apply


def entry(**changes: Any) -> Change:
    return header(lambda content: content[KEY].update(changes))


def shape(*sizes: Any) -> Change:
    return entry(shape=list(sizes))


def raw_file(make: Callable[[bytes], bytes]) -> Change:
    def apply(folder: Path) -> None:
        path = folder / TENSORS
        path.write_bytes(make(path.read_bytes()))
        rehash(folder)

    return apply


def renamed(name: str) -> Change:
    return header(lambda content: content.update({name: content.pop(KEY)}))


def swapped_offsets(content: dict[str, Any]) -> None:
    begin, end = content[KEY]["data_offsets"]
    content[KEY]["data_offsets"] = [end, begin]


def overlapping(content: dict[str, Any]) -> None:
    first = min(content[k]["data_offsets"][0] for k in content if k != "__metadata__")
    size = content[KEY]["data_offsets"][1] - content[KEY]["data_offsets"][0]
    content[KEY]["data_offsets"] = [first + 4, first + 4 + size]


def shifted(content: dict[str, Any]) -> None:
    for key in content:
        if key != "__metadata__":
            content[key]["data_offsets"] = [n + 8 for n in content[key]["data_offsets"]]


def many_tensors(content: dict[str, Any]) -> dict[str, Any]:
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    return {**{f"t{n}": empty for n in range(200_000)}, **content}


HEADERS: dict[str, Change] = {
    "huge-shape": shape(2**40, 2**40),
    "overflowing-shape": shape(2**62 + 6, 4),
    "overflow-to-right-size": shape(2**61 + 3, 8),
    "negative-shape": shape(-24),
    "two-negative-sizes": shape(-4, -6),
    "zero-shape-with-bytes": shape(0),
    "wrong-shape": shape(23),
    "nine-dimensions": shape(1, 1, 1, 1, 1, 1, 1, 1, 24),
    "shape-of-floats": shape(24.0),
    "shape-of-bools": shape(True),
    "shape-of-text": entry(shape="24"),
    "shape-missing": header(lambda content: content[KEY].pop("shape") and None),
    "unknown-field": entry(extra=1),
    "unknown-dtype": entry(dtype="F128"),
    "wrong-dtype": entry(dtype="I32"),
    "dtype-of-other-size": entry(dtype="F64"),
    "dtype-list": entry(dtype=["F32"]),
    "offsets-swapped": header(swapped_offsets),
    "offsets-out-of-range": entry(data_offsets=[2**50, 2**50 + 96]),
    "offsets-negative": entry(data_offsets=[-96, 0]),
    "offsets-three": entry(data_offsets=[0, 96, 96]),
    "overlap": header(overlapping),
    "hole-at-start": header(shifted, tail=b"\0" * 8),
    "trailing-bytes": header(lambda content: None, tail=b"trailing"),
    "missing-bytes": raw_file(lambda raw: raw[:-8]),
    "name-with-dots": renamed("../../0.bias"),
    "name-absolute": renamed("/0.bias"),
    "name-with-control": renamed("0\n.bias"),
    "name-too-long": renamed("n" * 600),
    "name-empty": renamed(""),
    "unclaimed-tensor": renamed("1.bias"),
    "metadata-not-text": header(lambda content: content.update(__metadata__={"a": 1})),
    "header-is-list": header(lambda content: [content]),
    "header-duplicate-key": header(
        lambda content: (
            json.dumps(content)[:-1].encode()
            + b', "0.bias": '
            + json.dumps(content[KEY]).encode()
            + b"}"
        )
    ),
    "header-deep": header(lambda content: b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "header-not-json": header(lambda content: b"PK\x03\x04" * 10),
    "header-length-beyond-file": raw_file(lambda raw: (2**40).to_bytes(8, "little") + raw[8:]),
    "header-length-maximal": raw_file(lambda raw: b"\xff" * 8 + raw[8:]),
    "header-length-zero": raw_file(lambda raw: b"\0" * 8 + raw[8:]),
    "empty-file": raw_file(lambda raw: b""),
    "other-magic": raw_file(lambda raw: b"GGUF" + raw[4:]),
    "many-tensors": header(many_tensors),
}


# Manifests.


def manifest(change: Callable[[dict[str, Any]], Any]) -> Change:
    return lambda folder: edit_manifest(folder, lambda content: change(content) and None)


def weight(**changes: Any) -> Change:
    return manifest(lambda content: content["tensors"]["0.weight"].update(changes))


def mask(**changes: Any) -> Change:
    return manifest(lambda content: content["tensors"]["0.weight"]["mask"].update(changes))


def raw_manifest(make: Callable[[bytes], bytes]) -> Change:
    def apply(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_bytes(make(path.read_bytes()))

    return apply


def many_layers(content: dict[str, Any]) -> None:
    relu = {"kind": "torch", "name": "ReLU", "args": {"inplace": False}, "children": []}
    children = [{**relu, "key": str(n)} for n in range(1, 60_000)]
    content["architecture"]["children"] += children


def many_encoders(content: dict[str, Any]) -> None:
    layer = {"d_model": 8, "nhead": 1, "dim_feedforward": 8, "dropout": 0, "activation": "relu"}
    layer |= {"layer_norm_eps": 0, "batch_first": True, "norm_first": False, "bias": True}
    node = {"kind": "torch", "name": "TransformerEncoderLayer", "args": layer, "children": []}
    args = {"num_layers": 1024, "enable_nested_tensor": False}
    encoder = {"kind": "torch", "name": "TransformerEncoder", "args": args}
    content["architecture"]["children"] = [
        {**encoder, "key": str(n), "children": [{**node, "key": "layer"}]} for n in range(1000)
    ]


def self_containing(content: dict[str, Any]) -> None:
    inner = {"kind": "torch", "name": "Sequential", "args": {}, "children": [], "key": "loop"}
    content["architecture"]["children"].append({**inner, "key": "a", "children": [inner]})
    content["shared_modules"] = {"a.loop": "a"}


def circular(content: dict[str, Any]) -> None:
    inner = {"kind": "torch", "name": "Sequential", "args": {}, "children": [], "key": "x"}
    for key in ("a", "b"):
        content["architecture"]["children"].append({**inner, "key": key, "children": [inner]})
    content["shared_modules"] = {"a.x": "b", "b.x": "a"}


def many_shared(content: dict[str, Any]) -> None:
    content["shared_modules"] = {f"a.{n}": f"b.{n}" for n in range(100_000)}


def long_names(content: dict[str, Any]) -> None:
    tied = {"kind": "tied", "to": "0.bias", "mask": None, "file": None}
    content["tensors"].update({"a." * 250 + str(n): tied for n in range(2000)})


def listed_twice(content: dict[str, Any]) -> None:
    content["files"]["card.md"] = {"size": 0, "sha256": "0" * 64}


MANIFESTS: dict[str, Change] = {
    "future-version": manifest(lambda content: content.update(version=2)),
    "other-format": manifest(lambda content: content.update(format="zip")),
    "unknown-key": manifest(lambda content: content.update(postload="import os")),
    "file-outside": manifest(
        lambda content: content["files"].update({"../evil": {"size": 1, "sha256": "0" * 64}})
    ),
    "file-missing": manifest(
        lambda content: content["files"].update({"gone": {"size": 1, "sha256": "0" * 64}})
    ),
    "file-size": manifest(lambda content: content["files"][TENSORS].update(size=2**46)),
    "card-is-listed": manifest(listed_twice),
    "tensor-in-no-file": weight(file="manifest.json"),
    "array-twice": weight(arrays=["values", "bitmask", "bitmask"]),
    "tensor-file-missing": weight(file="other.safetensors"),
    "array-missing": weight(arrays=["values", "bitmask", "ghost"]),
    "array-forgotten": weight(arrays=["values"]),
    "no-arrays": weight(arrays=[]),
    "unknown-format": weight(format="pickle"),
    "other-format-of-arrays": weight(format="csr"),
    "unknown-pattern": mask(pattern="evil"),
    "pattern-is-code": mask(pattern="os:system"),
    "pattern-not-canonical": mask(pattern="02:04"),
    "pattern-huge": mask(pattern="nmg:16:32:1"),
    "pattern-does-not-fit": mask(pattern="5:7"),
    "pattern-is-violated": mask(pattern="2:4"),
    "nnz-wrong": mask(nnz=1),
    "mask-digest-wrong": mask(sha256="0" * 64),
    "shape-wrong": weight(shape=[48, 24]),
    "shape-vector": weight(shape=[24 * 48]),
    "shape-huge": weight(shape=[2**40, 2**40]),
    "dtype-wrong": weight(dtype="bfloat16"),
    "dtype-unknown": weight(dtype="object"),
    "dtype-integer": weight(dtype="int64"),
    "masked-with-mode": weight(mode="jit"),
    "compact-without-mode": weight(holder="compact"),
    "unknown-mode": weight(holder="compact", mode="eval"),
    "tied-to-itself": manifest(
        lambda content: content["tensors"].update({"x": {"kind": "tied", "to": "x"}})
    ),
    "tied-to-nothing": manifest(
        lambda content: content["tensors"].update({"x": {"kind": "tied", "to": "y"}})
    ),
    "tied-in-a-ring": manifest(
        lambda content: content["tensors"].update(
            {"x": {"kind": "tied", "to": "y"}, "y": {"kind": "tied", "to": "x"}}
        )
    ),
    "tied-mask-without-file": manifest(
        lambda content: content["tensors"].update(
            {
                "x": {
                    "kind": "tied",
                    "to": KEY,
                    "mask": {"pattern": "unstructured", "nnz": 0, "sha256": "0" * 64},
                }
            }
        )
    ),
    "module-inside-itself": manifest(self_containing),
    "modules-in-a-ring": manifest(circular),
    "shared-with-nothing": manifest(lambda content: content.update(shared_modules={"0": "9"})),
    "shared-over-tensors": manifest(lambda content: content.update(shared_modules={"0": "1"})),
    "many-shared": manifest(many_shared),
    "long-names": manifest(long_names),
    "many-layers": manifest(many_layers),
    "long-recipe": manifest(lambda content: content.update(recipe="x" * 2**24)),
    "many-encoders": manifest(many_encoders),
    "edited-without-digest": raw_manifest(lambda raw: raw.replace(b"float32", b"float64")),
    "duplicate-key": raw_manifest(lambda raw: raw.replace(b"{", b'{"version": 1, ', 1)),
    "deep": raw_manifest(lambda raw: b"[" * 100_000 + b"]" * 100_000),
    "many-values": raw_manifest(lambda raw: b"[" + b"[]," * 15_000_000 + b"[]]"),
    "many-escapes": raw_manifest(lambda raw: b'{"a":"' + b"\\u0041" * 8_000_000 + b'"}'),
    "large": raw_manifest(lambda raw: b" " * (65 * 2**20)),
    "not-ascii": raw_manifest(lambda raw: raw.replace(b"float32", "floa\u0442".encode())),
    "empty": raw_manifest(lambda raw: b""),
    "binary": raw_manifest(lambda raw: bytes(range(256)) * 4),
}


# Decompression bombs (F13): few bytes, terabytes of dense weight.


def bomb(holder: str, columns: int) -> Change:
    """One row of 2^31 columns with one kept weight, in csr: legal, tiny, 8 GiB when expanded."""

    def apply(folder: Path) -> None:
        from safetensors.torch import save_file

        arrays = {
            "0.weight::values": torch.ones(1),
            "0.weight::columns": torch.zeros(1, dtype=torch.int32),
            "0.weight::row_pointers": torch.tensor([0] * 1 + [1], dtype=torch.int32),
        }
        save_file(arrays, folder / TENSORS)

        def change(content: dict[str, Any]) -> None:
            content["tensors"] = {
                "0.weight": {
                    **content["tensors"]["0.weight"],
                    "shape": [1, columns],
                    "format": "csr",
                    "arrays": ["columns", "row_pointers", "values"],
                    "mask": {"pattern": "unstructured", "nnz": 1, "sha256": "0" * 64},
                    "holder": holder,
                    "mode": "jit" if holder == "compact" else None,
                }
            }
            layer = content["architecture"]["children"][0]
            layer["args"] = {"in_features": columns, "out_features": 1, "bias": False}

        edit_manifest(folder, change)
        rehash(folder)

    return apply


BOMBS: dict[str, Change] = {
    f"{holder}-{columns}": bomb(holder, columns)
    for holder in ("masked", "compact")
    for columns in (2**36, 2**40)
}

CASES: dict[str, Change] = {
    **{f"header-{name}": change for name, change in HEADERS.items()},
    **{f"manifest-{name}": change for name, change in MANIFESTS.items()},
    **{f"bomb-{name}": change for name, change in BOMBS.items()},
}


def peak_bytes() -> int:
    # Not getrusage: its maximum survives exec, so it starts at what the parent process had.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def try_all(folder: Path) -> dict[str, Any]:
    load(folder / "good")
    before, raised = peak_bytes(), {}
    for path in sorted(folder.iterdir()):
        try:
            load(path)
        except GossamerError as error:
            raised[path.name] = type(error).__name__
    return {"raised": raised, "growth": peak_bytes() - before}


if __name__ == "__main__":
    sys.stdout.buffer.write(pretty_json(try_all(Path(sys.argv[1]))))
