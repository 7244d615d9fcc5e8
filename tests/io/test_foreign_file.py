# SPDX-License-Identifier: Apache-2.0
"""Files and folders that are no model we read say what they are, and the way from there."""

import zipfile

import numpy as np
import pytest
import torch

import gossamer
from gossamer.errors import ArtifactError
from gossamer.io.pruners import describe_foreign
from gossamer.zoo import MLP


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("m.pkl", b"\x80\x04}.", "is a pickle, which may run any code"),
        ("m.bin", b"\x80\x02}.", "torch.load("),
        ("m.h5", b"\x89HDF\r\n\x1a\n\0", "an HDF5 file"),
        ("m.tflite", b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        ("m.npy", b"\x93NUMPY\x01\0", "one array of numpy"),
        ("m.gz", b"\x1f\x8b\x08\0", "a gzip archive"),
        ("m.txt", "some wörds\n".encode() * 99, "is a text file, not a model"),
        ("m.json", b"{}", "is a text file, not a model"),
        ("m.bin", b"", "is empty"),
    ],
)
def test_files_by_their_first_bytes(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    assert words in describe_foreign(path)
    with pytest.raises(ArtifactError, match="m\\."):
        gossamer.load(path)


def test_archives(tmp_path):
    torch.save(MLP((4, 4, 2)).state_dict(), tmp_path / "state.pt")
    assert "a checkpoint of torch.save, a pickle" in describe_foreign(tmp_path / "state.pt")
    np.savez(tmp_path / "arrays.npz", x=np.zeros(2))
    assert "archive of numpy arrays" in describe_foreign(tmp_path / "arrays.npz")
    for name, words in (("a/constants.pkl", "TorchScript"), ("readme", "a zip archive")):
        with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
            archive.writestr(name, "x")
        assert words in describe_foreign(tmp_path / "some.zip")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "state.pt").read_bytes()[:100])
    assert describe_foreign(tmp_path / "cut.pt") is None


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "it holds nothing"),
        (("notes.txt",), "it holds 'notes.txt'"),
        (("pytorch_model.bin",), "is a checkpoint that is a pickle"),
        (("saved_model.pb",), "a TensorFlow model"),
        (("model.onnx",), "Name the file in it"),
        (("a.gguf", "notes.txt"), "a.gguf"),
    ],
)
def test_folders_by_what_they_hold(tmp_path, names, words):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    assert words in describe_foreign(tmp_path)


def test_what_may_be_a_model_is_left_to_its_reader(tmp_path):
    gossamer.save(MLP((4, 4, 2)), tmp_path / "artifact", format="dense")
    assert describe_foreign(tmp_path / "artifact") is None
    tensors = next((tmp_path / "artifact").glob("*.safetensors"))
    assert describe_foreign(tensors) is None
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\0\0\0")
    assert describe_foreign(tmp_path / "m.gguf") is None
