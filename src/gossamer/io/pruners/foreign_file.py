# SPDX-License-Identifier: Apache-2.0
"""What a file or folder is that is no model we read: its kind, why not, and the way from there."""

import zipfile
from pathlib import Path

from gossamer.named_files import open_named

_HEAD_BYTES = 512
_PICKLE = (
    "which may run any code when it is read, so it is never opened here. If you trust it, convert"
    " it: load it with torch.load({name!r}, weights_only=True) and write its tensors with"
    " safetensors.torch.save_file, or for a transformers model call"
    " model.save_pretrained(FOLDER); then name that file or folder."
)
# First bytes, what it is, what to do; {name} is the file's.
_MAGIC = (
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file (Keras)", "Export the model to ONNX, and name that file."),
    (b"\x93NUMPY", "one array of numpy (.npy)", "Name a model; arrays are data."),
    (b"%PDF", "a PDF file", "Name a model."),
    (b"\x1f\x8b", "a gzip archive", "Unpack it and name the folder or file inside."),
    (b"TFL3", "a TensorFlow Lite file", "Export the model to ONNX, and name that file."),
)
# Files of a folder, in the same way.
_IN_FOLDER = (
    ("saved_model.pb", "a TensorFlow model", "Export it to ONNX, and name that file."),
    ("*.gguf", "a folder with a gguf file", "Name the file in it: {found}."),
    ("*.onnx", "a folder with an ONNX file", "Name the file in it: {found}."),
)
# Endings of files in a zip archive, and what it is.
_IN_ZIP = (
    (
        "/constants.pkl",
        "is a TorchScript archive, a program of its own. Name what it was made from: a Hugging"
        " Face directory, module:function of yours, or an ONNX export.",
    ),
    (".pkl", f"is a checkpoint of torch.save, a pickle, {_PICKLE}"),
    (".npy", "is an archive of numpy arrays (.npz): data, not a model. Give it as --data."),
)
EXPECTED = (
    "Expected a gossamer artifact, a local Hugging Face directory, a gguf or ONNX file,"
    " module:function or a built-in model such as zoo:mlp."
)


def describe_foreign(path: Path) -> str | None:
    """A sentence on what lies at `path` and how to get a model from it; None if it may be one."""
    if path.is_dir():
        return _describe_folder(path)
    if not path.is_file():
        return f"is neither a file nor a folder. {EXPECTED}"
    with open_named(path) as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"PK") and zipfile.is_zipfile(path):
        return _describe_zip(path)
    # Protocol 2 to 5 of pickle, and what torch wrote before its files were archives.
    if head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5:
        return f"is a pickle, {_PICKLE.format(name=str(path))}"
    for magic, what, advice in _MAGIC:
        if head.startswith(magic) or head[4 : 4 + len(magic)] == magic:
            return f"is {what}, not a model we read. {advice}"
    if not head:
        return f"is empty. {EXPECTED}"
    # A file that claims to be a model is judged by the reader of its kind.
    if _is_text(head) and path.suffix not in (".safetensors", ".onnx", ".gguf"):
        return f"is a text file, not a model. {EXPECTED}"
    return None


def _describe_folder(path: Path) -> str | None:
    names = sorted(entry.name for entry in path.iterdir())
    if {"manifest.json", "config.json"} & set(names) or list(path.glob("*.safetensors")):
        return None
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickles:
        name = str(path / pickles[0])
        return f"{name} is a checkpoint that is a pickle, {_PICKLE.format(name=name)}"
    for pattern, what, advice in _IN_FOLDER:
        found = sorted(path.glob(pattern))
        if found:
            return f"is {what}. {advice.format(found=found[0])}"
    held = ", ".join(map(ascii, names[:5])) + (", ..." if len(names) > 5 else "")
    return f"is a folder without a model: it holds {held or 'nothing'}. {EXPECTED}"


def _describe_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [entry.filename for entry in archive.infolist()[:1000]]
    except (zipfile.BadZipFile, OSError, NotImplementedError):
        names = []
    for ending, what in _IN_ZIP:
        if any(name.endswith(ending) for name in names):
            return what.format(name=str(path))
    return "is a zip archive, not a model. Unpack it and name the folder or file inside."


def _is_text(head: bytes) -> bool:
    """Whether it reads as UTF-8 without control characters; the last character may be cut."""
    for cut in range(4):
        try:
            text = head[: len(head) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return all(char.isprintable() or char in "\t\r\n\f\ufeff" for char in text)
    return False
