# SPDX-License-Identifier: Apache-2.0
"""What runs leave behind, compared; and the processes behind a launcher."""

import hashlib
import json
from pathlib import Path

# Seconds of training, the length of a file that holds milliseconds, and the hash over both: a
# checkpoint remembers them, and no step depends on them.
CLOCKS = ("seconds", "metrics_bytes")


def left_behind(folder):
    """File -> sha256, of the artifact and of the last checkpoint, without what is a clock's."""
    found = {f"out/{file.name}": _digest(file.read_bytes()) for file in (folder / "out").iterdir()}
    last = max((folder / "out.run" / "checkpoints").glob("step_*"))
    for file in last.iterdir():
        content = file.read_bytes()
        if file.name == "manifest.json":
            content = _without_clocks(content)
        found[f"{last.name}/{file.name}"] = _digest(content)
    return found


def differences(first, second):
    """Files of two runs that differ or that only one of them has; empty: the same bytes."""
    one, other = left_behind(first), left_behind(second)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def progress_of(folder):
    """The step of the newest checkpoint; 0 before the first."""
    names = [path.name for path in (folder / "out.run" / "checkpoints").glob("step_????????")]
    return max((int(name.removeprefix("step_")) for name in names), default=0)


def worker_processes(launcher):
    """Ids of the ranks that a torchrun started."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (path / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError, ValueError):
            continue
        if parent == launcher and any(entry.startswith(b"RANK=") for entry in environment):
            found.append(int(path.name))
    return sorted(found)


def _digest(content):
    return hashlib.sha256(content).hexdigest()


def _without_clocks(manifest):
    document = json.loads(manifest)
    document.pop("digest")
    for name in CLOCKS:
        document["state"]["counters"].pop(name)
    return json.dumps(document, sort_keys=True).encode()
