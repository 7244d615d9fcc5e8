# SPDX-License-Identifier: Apache-2.0
"""The model that a run starts from: a module of the user's, or files that are loaded late."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from gossamer.errors import ArtifactError, InputError
from gossamer.io import read_beside
from gossamer.io.loading import load_telling
from gossamer.io.pruners import adoption_text, describe_foreign
from gossamer.runs.voice import Say

__all__ = [
    "Origin",
    "Source",
    "check_path",
    "directory_bytes",
    "load_path",
    "origin_of",
    "tensor_bytes",
]


@dataclass(frozen=True)
class Source:
    """A model and what to call it.

    Attributes:
        model: in eval mode.
        name: short, for titles; the last part of a path.
        disk_bytes: bytes of its tensor files, None if it has none.
        beside: tokenizer and the like, for `gossamer.save(..., beside=)`.
    """

    model: nn.Module
    name: str
    disk_bytes: int | None
    beside: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Origin:
    """Where a model comes from; it is loaded once everything else has been checked.

    Attributes:
        text: as the user wrote it.
        check: raises if there is no such model; loads nothing.
        load: gives the model; its argument gets lines for people.
    """

    text: str
    check: Callable[[], None]
    load: Callable[[Say], Source]


def origin_of(model: "nn.Module | Source | str | os.PathLike[str]") -> Origin:
    """The origin of a module, alone or with its files, or of an artifact or model folder."""
    if isinstance(model, Source):
        return Origin(model.name, lambda: None, lambda say: model)
    if isinstance(model, nn.Module):
        name = type(model).__name__
        return Origin(name, lambda: None, lambda say: Source(model.eval(), name, None))
    if not isinstance(model, str | os.PathLike):
        raise InputError(
            f"model: expected a torch.nn.Module or a path, got {type(model).__name__}."
        )
    path = Path(model)
    load = functools.partial(load_path, path, path.resolve().name)
    return Origin(str(model), functools.partial(check_path, path, str(model)), load)


def load_path(path: Path, name: str, say: Say, *, detect_masks: bool | None = None) -> Source:
    """The model that files hold.

    Args:
        path: an artifact, a model folder or a file.
        name: for titles.
        say: gets a line for people where zeros of the file became masks.
        detect_masks: as for `gossamer.load`.
    """
    model, adopted = load_telling(path, detect_masks=detect_masks)
    if adopted:
        say(adoption_text(adopted, name))
    return Source(model.eval(), name, tensor_bytes(path), read_beside(path))


def check_path(path: Path, text: str, *, others: str = "", bare: bool = False) -> None:
    """Raise if `path` holds no model, or a file that cannot be one; nothing is loaded.

    Args:
        path: where the files are.
        text: what the user wrote.
        others: what else could have been written, for the message.
        bare: whether tensors without an architecture will do.
    """
    if not path.exists():
        raise ArtifactError(
            f"{text}: there is no such file or directory. Expected a gossamer artifact, a local"
            f" Hugging Face directory, a gguf or ONNX file{others}."
        )
    foreign = describe_foreign(path)
    if foreign is not None:
        raise ArtifactError(f"{text}: {foreign}")
    if not bare and path.is_file() and path.suffix == ".safetensors":
        raise ArtifactError(
            f"{text}: holds tensors and does not say of which model. Put it into a folder with the"
            " config.json of its model and name the folder; or load it in Python into a model of"
            " yours, gossamer.load(path, model=model)."
        )


def tensor_bytes(path: Path) -> int:
    """Bytes of the tensor files of a directory, or of one file."""
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files)


def directory_bytes(path: Path) -> int:
    """Bytes of everything in a directory."""
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
