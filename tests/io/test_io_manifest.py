# SPDX-License-Identifier: Apache-2.0
"""The manifest: what it holds, and that a change of any kind is noticed."""

import json

import pytest

from gossamer.errors import ArtifactError
from gossamer.io.artifact.manifest import (
    DenseEntry,
    Manifest,
    MaskEntry,
    SparseEntry,
    TiedEntry,
    TorchNode,
    ZooNode,
)
from gossamer.io.safe_files.documents import pretty_json
from gossamer.io.safe_files.manifests import FileEntry, digest_of

FILE = "a.safetensors"
parse_manifest, manifest_bytes = Manifest.parse, Manifest.to_bytes
MANIFEST = Manifest(
    producer="gossamer 0.1.0",
    kind="packed",
    files={FILE: FileEntry(size=3, sha256="0" * 64)},
    tensors={
        "a.weight": DenseEntry(file=FILE, shape=(1, 2), dtype="float32"),
        "b.weight": SparseEntry(
            file=FILE,
            shape=(4, 4),
            dtype="bfloat16",
            format="nm",
            arrays=("positions", "values"),
            mask=MaskEntry(pattern="2:4", nnz=8, sha256="1" * 64),
            holder="compact",
            mode="jit",
        ),
        "c.weight": TiedEntry(to="a.weight"),
    },
    shared_modules={"d": "a"},
    architecture=TorchNode(
        name="Sequential",
        children=(
            TorchNode(name="Linear", args={"i": 1, "b": True, "f": 1.0, "t": (1, 2)}, key="a"),
            ZooNode(name="mlp", args={"sizes": (1, 2), "activation": "relu"}, key="b"),
        ),
    ),
    recipe="text\n",
)


def sealed(content):
    content.pop("digest", None)
    return pretty_json({**content, "digest": digest_of(content)})


def edited(**changes):
    content = json.loads(manifest_bytes(MANIFEST))
    content.update(changes)
    return sealed(content)


def test_it_reads_back_with_types_and_writes_the_same_bytes():
    raw = manifest_bytes(MANIFEST)
    again = parse_manifest(raw)
    assert again == MANIFEST
    assert again.architecture.children[0].args["b"] is True
    assert isinstance(again.architecture.children[0].args["f"], float)
    assert manifest_bytes(again) == raw


def test_order_of_keys_and_spaces_do_not_matter():
    content = json.loads(manifest_bytes(MANIFEST))
    shuffled = json.dumps(dict(reversed(content.items()))).encode()
    assert parse_manifest(shuffled) == MANIFEST


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"[]", "not the manifest"),
        (b'{"format": "something"}', "not the manifest"),
        (edited(version=2), "version 2 is not known.*Upgrade"),
        (edited(version=True), "version True is not known"),
        (edited(version="1"), "version '1' is not known"),
        (edited(extra=1), "extra: Extra inputs"),
        (edited(kind="zip"), "kind: "),
        (edited(producer=3), "producer: "),
        (edited(files={"../x": {"size": 1, "sha256": "0" * 64}}), r"files.*\.\."),
        (edited(files={"a/b": {"size": 1, "sha256": "0" * 64}}), "plain file name"),
        (edited(files={".hidden": {"size": 1, "sha256": "0" * 64}}), "plain file name"),
        (edited(files={"a": {"size": -1, "sha256": "0" * 64}}), "files.a.size"),
        (edited(files={"a": {"size": 1, "sha256": "Z" * 64}}), "files.a.sha256"),
        (edited(files={"a": {"size": 1.0, "sha256": "0" * 64}}), "files.a.size"),
        (edited(tensors={"/abs": {"kind": "tied", "to": "a"}}), "looks like a path"),
        (edited(tensors={"": {"kind": "tied", "to": "a"}}), "1 to 512 bytes"),
        (edited(tensors={"n" * 513: {"kind": "tied", "to": "a"}}), "1 to 512 bytes"),
        (edited(tensors={"a\nb": {"kind": "tied", "to": "a"}}), "control characters"),
        (edited(tensors={"a": {"kind": "pickle"}}), "pickle"),
        (edited(architecture={"kind": "torch", "name": "Linear", "code": "x"}), "code"),
        (edited(architecture={"kind": "transformers", "name": "X", "path": "y"}), "path"),
        (b"\xff" + manifest_bytes(MANIFEST), "not ASCII"),
        (manifest_bytes(MANIFEST).replace(b'"size": 3', b'"size": 4'), "its own digest"),
        (manifest_bytes(MANIFEST)[:-40], "not valid JSON"),
    ],
)
def test_refused(raw, text):
    with pytest.raises(ArtifactError, match=text) as caught:
        parse_manifest(raw)
    assert str(caught.value).isascii()


def test_all_faults_are_listed_at_once():
    raw = edited(kind="zip", producer=3, extra=1)
    with pytest.raises(ArtifactError, match="3 faults") as caught:
        parse_manifest(raw)
    for name in ("kind", "producer", "extra"):
        assert name in str(caught.value)
