# SPDX-License-Identifier: Apache-2.0
"""What directories of sentence-transformers say beside the weights: pooling, length, prompts.

`modules.json` there lists modules, each in a folder of its own. An artifact has no folders: the
configuration of the pooling is carried as `pooling_config.json`, and `folders_of` puts it back.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from gossamer.errors import ArtifactError, InputError
from gossamer.io.safe_files import MAX_MANIFEST_BYTES
from gossamer.io.safe_files.documents import parse_json, parse_object
from gossamer.named_files import is_inside, read_inside

__all__ = [
    "POOLINGS",
    "POOLING_FILE",
    "Pooling",
    "Sentences",
    "folders_of",
    "read_pooling",
    "sentences_of",
]

Pooling = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
POOLINGS = get_args(Pooling)
MODULES_FILE = "modules.json"
POOLING_FILE = "pooling_config.json"
_LENGTH_FILE = "sentence_bert_config.json"
_PROMPTS_FILE = "config_sentence_transformers.json"
_INNER = "config.json"
_FOLDER = re.compile(r"[A-Za-z0-9_]{1,80}")
# The last part of a module's type; before it stands where a version of the package keeps it.
_KNOWN = ("Transformer", "Pooling", "Normalize")
# As versions before 5.3 wrote it: a flag for each kind.
_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class Sentences:
    """How a model of sentence-transformers makes a vector of a text.

    Attributes:
        pooling: of the last hidden state.
        normalise: whether vectors have length 1.
        max_tokens: texts are cut there; None = as the model can.
        prompts: texts that are set in front of a text, by name.
        default_prompt: the one that is set if none is asked for; empty for none.
        pools_prompt: whether the tokens of a prompt count.
        lower: whether texts are read in small letters.
    """

    pooling: Pooling
    normalise: bool
    max_tokens: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    pools_prompt: bool = True
    lower: bool = False

    def prompt(self, name: str | None) -> str:
        """The text of a prompt; without a name the default one, which may be none."""
        asked = self.default_prompt if name is None else name
        if not asked:
            return ""
        if asked not in self.prompts:
            raise InputError(
                f"prompt {asked!r}: this model has {', '.join(self.prompts) or 'no prompts'}."
            )
        if self.prompts[asked] and not self.pools_prompt:
            raise InputError(
                f"prompt {asked!r}: this model leaves the tokens of prompts out of its pooling,"
                " which is not computed here. Set no prompt."
            )
        return self.prompts[asked]


def read_pooling(folder: os.PathLike[str] | str) -> dict[str, bytes]:
    """`pooling_config.json` of a directory whose `modules.json` names a Pooling; else nothing."""
    if is_inside(folder, POOLING_FILE) or not is_inside(folder, MODULES_FILE):
        return {}
    raw = read_inside(folder, MODULES_FILE, MAX_MANIFEST_BYTES)
    for kind, path in _modules(raw, str(Path(folder) / MODULES_FILE)):
        if kind == "Pooling":
            return {POOLING_FILE: read_inside(folder, f"{path}/{_INNER}", MAX_MANIFEST_BYTES)}
    return {}


def folders_of(beside: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """The folders that `modules.json` among these files wants, with their files."""
    folders: dict[str, dict[str, bytes]] = {}
    for kind, path in _modules(beside.get(MODULES_FILE, b"[]"), MODULES_FILE):
        if kind == "Pooling":
            folders[path] = {_INNER: _needed(beside, POOLING_FILE)}
        elif kind == "Normalize":
            folders[path] = {}
    return folders


def sentences_of(beside: Mapping[str, bytes]) -> Sentences | None:
    """What the files beside a model say; None if they are not those of sentence-transformers.

    Raises:
        ArtifactError: they ask for a module or a pooling that is not known.
    """
    if MODULES_FILE not in beside:
        return None
    kinds = [kind for kind, _ in _modules(beside[MODULES_FILE], MODULES_FILE)]
    if kinds not in ([*_KNOWN[:2]], [*_KNOWN]):
        raise ArtifactError(
            f"{MODULES_FILE}: lists {', '.join(kinds) or 'no module'}; expected Transformer,"
            " Pooling and, if vectors have length 1, Normalize. Other modules are not computed."
        )
    pooled = parse_object(_needed(beside, POOLING_FILE), POOLING_FILE)
    read = _object(beside, _LENGTH_FILE)
    length = read.get("max_seq_length")
    told = _object(beside, _PROMPTS_FILE)
    prompts, default = told.get("prompts") or {}, told.get("default_prompt_name") or ""
    if length is not None and (type(length) is not int or length < 1):
        raise ArtifactError(
            f"{_LENGTH_FILE}: max_seq_length must be a whole number from 1, got {length!r}."
        )
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise ArtifactError(f"{_PROMPTS_FILE}: prompts must be texts by name.")
    if default and default not in prompts:
        raise ArtifactError(
            f"{_PROMPTS_FILE}: default_prompt_name {default!r} is none of its prompts"
            f" ({', '.join(prompts) or 'it has none'})."
        )
    return Sentences(
        pooling=_pooling(pooled),
        normalise=kinds[-1] == "Normalize",
        max_tokens=length,
        prompts=prompts,
        default_prompt=default,
        pools_prompt=pooled.get("include_prompt") is not False,
        lower=read.get("do_lower_case") is True,
    )


def _pooling(config: dict[str, Any]) -> Pooling:
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if config.get(flag) is True]
        modes += [
            key
            for key, on in config.items()
            if key.startswith("pooling_mode_") and key not in _FLAGS and on
        ]
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in POOLINGS:
        raise ArtifactError(
            f"{POOLING_FILE}: asks for the pooling {modes!r}; expected one of"
            f" {', '.join(POOLINGS)}. Several at once are not computed."
        )
    found: Pooling = modes[0]
    return found


def _modules(raw: bytes, where: str) -> list[tuple[str, str]]:
    """Kind and folder of each module."""
    listed = parse_json(raw, where)
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ArtifactError(f"{where}: must be a list of modules.")
    modules = []
    for entry in listed:
        kind, path = str(entry.get("type", "")).rsplit(".", 1)[-1], entry.get("path", "")
        if not isinstance(path, str) or (path and not _FOLDER.fullmatch(path)):
            raise ArtifactError(
                f"{where}: {str(path)[:80]!a} is no name of a folder of this directory."
            )
        modules.append((kind[:80], path))
    return modules


def _needed(beside: Mapping[str, bytes], name: str) -> bytes:
    if name not in beside:
        raise ArtifactError(
            f"{MODULES_FILE}: names a Pooling, but its configuration ({name} beside it, or"
            f" {_INNER} in its folder) is missing. Copy the whole directory."
        )
    return beside[name]


def _object(beside: Mapping[str, bytes], name: str) -> dict[str, Any]:
    return parse_object(beside[name], name) if name in beside else {}
