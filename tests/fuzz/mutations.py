# SPDX-License-Identifier: Apache-2.0
"""Changes to files: bytes, texts, and the structure behind them, so that deep checks are reached.

A case is a set of files, by name. Everything is drawn from one `random.Random`, so the number of a
case is enough to make it again.
"""

import hashlib
import json
import random
from collections.abc import Callable

from containers import change_npz, change_onnx, change_safetensors
from value_changes import change_bytes, change_json, change_lines, change_value, scalar

__all__ = ["Files", "change_bytes", "change_files", "change_value", "rehash", "scalar"]

Files = dict[str, bytes]
Change = Callable[[bytes, random.Random], bytes]

BY_SUFFIX: dict[str, Change] = {
    ".json": change_json,
    ".safetensors": change_safetensors,
    ".npz": change_npz,
    ".onnx": change_onnx,
    ".jsonl": change_lines,
    ".txt": change_lines,
    ".csv": change_lines,
    ".tsv": change_lines,
    ".yaml": change_lines,
    ".jinja": change_lines,
}


def change_files(files: Files, draw: random.Random) -> Files:
    """One to three of the files changed, each by its kind; rarely one is dropped or swapped."""
    changed = dict(files)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        name = draw.choice(sorted(changed))
        chance = draw.random()
        if chance < 0.02 and len(changed) > 1:
            changed.pop(name)
        elif chance < 0.04:
            changed[name] = changed[draw.choice(sorted(changed))]
        else:
            suffix = name[name.rfind(".") :]
            change = BY_SUFFIX.get(suffix, change_bytes)
            if name.endswith(".jsonl") and draw.random() < 0.5:
                changed[name] = _change_json_lines(changed[name], draw)
            elif draw.random() < 0.2:
                changed[name] = change_bytes(changed[name], draw)
            else:
                changed[name] = change(changed[name], draw)
    return changed


def _change_json_lines(raw: bytes, draw: random.Random) -> bytes:
    lines = raw.split(b"\n")
    place = draw.randrange(len(lines))
    lines[place] = change_json(lines[place] or b"{}", draw)
    return b"\n".join(lines)


def rehash(files: Files, manifest: str = "manifest.json") -> Files:
    """The same files with sizes, hashes and the manifest's own digest made to fit."""
    from gossamer.io.safe_files.documents import pretty_json
    from gossamer.io.safe_files.manifests import digest_of

    try:
        content = json.loads(files[manifest])
        content.pop("digest", None)
        for name, entry in content["files"].items():
            if name in files:
                raw = files[name]
                entry.update(size=len(raw), sha256=hashlib.sha256(raw).hexdigest())
        content["digest"] = digest_of(content)
        return {**files, manifest: pretty_json(content)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return files
