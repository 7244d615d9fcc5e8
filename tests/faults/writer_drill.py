# SPDX-License-Identifier: Apache-2.0
"""Writers that die or run out of disk, each in a forked child; run as a script.

`python writer_drill.py kill|limit|exchange FOLDER` prints one JSON line per drill: what
happened to the child, which artifact is there afterwards, and what else lies in the folder.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gossamer.errors import GossamerError
from gossamer.io import load, save
from gossamer.io.safe_files import directories
from gossamer.zoo import MLP

OLD, NEW = (8, 16, 3), (8, 24, 3)
# Every call by which a writer changes the disk; the writer is killed before and after each.
HOOKS: list[tuple[Any, str]] = [
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "unlink"),
    (directories, "_exchange"),
    (directories.shutil, "rmtree"),
]


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            work()
        except GossamerError as error:
            sys.stderr.write(f"{error}\n")
            code = error.exit_code
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            code = 99
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def report(path: Path, code: int) -> None:
    state = {
        "code": code,
        "sizes": list(load(path).sizes),
        "beside": sorted(p.name for p in path.parent.iterdir() if p.name != path.name),
    }
    # Whatever was left must not disturb the next writer, and is gone after it.
    save(MLP(OLD), path)
    state["after"] = sorted(p.name for p in path.parent.iterdir() if p.name != path.name)
    sys.stdout.write(json.dumps(state) + "\n")


def kill_at(call: int, *, before: bool) -> None:
    count = 0

    def hooked(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            mine = count
            if mine == call and before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if mine == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    for owner, name in HOOKS:
        setattr(owner, name, hooked(getattr(owner, name)))


def kill_drill(path: Path, *, exchange: bool) -> None:
    if not exchange:
        directories._exchange = lambda first, second: False
    for call in range(1, 40):
        codes = []
        for before in (True, False):

            def work(call: int = call, before: bool = before) -> None:
                kill_at(call, before=before)
                save(MLP(NEW), path)

            codes.append(in_child(work))
            report(path, codes[-1])
        if codes == [0, 0]:
            return


def limit_drill(path: Path) -> None:
    largest = max(p.stat().st_size for p in path.iterdir())
    for limit in (0, 1, 7, 8, 100, 500, 1000, largest // 2, largest, 2 * largest):

        def work(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            save(MLP(NEW), path)

        report(path, in_child(work))


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[2]) / "a"
    save(MLP(OLD), target)
    if sys.argv[1] == "limit":
        limit_drill(target)
    else:
        kill_drill(target, exchange=sys.argv[1] == "kill")
