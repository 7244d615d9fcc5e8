# SPDX-License-Identifier: Apache-2.0
"""Training runs that are killed or run out of disk, each in a forked child; run as a script.

`python train_drill.py FOLDER kill:SEED:COUNT phases limit memory` prints one JSON line per run. A
moment is the n-th call of one of the functions below: model and optimizer inside a step, and every
call by which a checkpoint or an artifact changes the disk. The child is killed before or after it.
"""

import json
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # seconds of imports that an optimizer asks for; once, before the forks
from loop_tools import arguments, artifact_bytes, write_recipe

import gossamer.runs.verbs  # noqa: F401  (once, before the forks)
from gossamer.cli.main import main
from gossamer.io.safe_files import directories, tensors
from gossamer.nn.surgery import compaction
from gossamer.training.checkpoint import folders as checkpoint
from gossamer.zoo import MLP

STEP: list[tuple[Any, str]] = [
    (MLP, "forward"),
    (torch.autograd, "backward"),
    (torch.optim.AdamW, "step"),
    (compaction, "_convert"),
]
DISK: list[tuple[Any, str]] = [
    (os, "fsync"),
    (Path, "mkdir"),
    (Path, "rename"),
    (Path, "unlink"),
    (Path, "rmdir"),
    (directories, "_exchange"),
    (directories.shutil, "rmtree"),
    (tensors.HashingFile, "write"),
    (checkpoint.CheckpointStore, "_remove_old"),
]


def in_child(work: Callable[[], int]) -> int:
    """Run `work` in a forked child; its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 99
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            code = work()
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


class Calls:
    """Counts the calls of the hooked functions and kills the process at one of them."""

    def __init__(self, hooks: list[tuple[Any, str]], kill_at: int | None, before: bool) -> None:
        self.count = 0
        self._kill_at, self._before = kill_at, before
        for owner, name in hooks:
            setattr(owner, name, self._hooked(getattr(owner, name)))

    def _hooked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            mine = self.count
            if mine == self._kill_at and self._before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if mine == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper


def count_calls(folder: Path, hooks: list[tuple[Any, str]], name: str) -> int:
    """Calls of one undisturbed run, which goes to `name`."""
    reader, writer = os.pipe()

    def work() -> int:
        calls = Calls(hooks, None, before=False)
        code = main(arguments(folder, out=name))
        os.write(writer, str(calls.count).encode())
        return code

    if in_child(work) != 0:
        raise SystemExit("the undisturbed run failed")
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return int(pipe.read())


def kill_and_resume(folder: Path, name: str, hooks: Any, call: int, before: bool) -> dict[str, Any]:
    """Kill one run, look at what it left, resume it to the end."""

    def killed() -> int:
        Calls(hooks, call, before)
        return main(arguments(folder, out=name))

    def resumed() -> int:
        return main(arguments(folder, "--resume", out=name))

    code = in_child(killed)
    store = checkpoint.CheckpointStore(folder / f"{name}.run" / "checkpoints")
    notices: list[str] = []
    newest = store.newest(notices.append)
    return {
        "code": code,
        "call": call,
        "newest": None if newest is None else newest.step,
        "notices": notices,
        "resumed": in_child(resumed),
        "steps": store.steps(),
        "left": sorted(p.name for p in store.folder.iterdir() if not p.name.startswith("step_0")),
        "temporary": sorted(p.name for p in store.folder.iterdir() if ".tmp-" in p.name),
    }


def kill_drill(folder: Path, seed: int, count: int) -> None:
    if in_child(lambda: main(arguments(folder, out="whole"))) != 0:
        raise SystemExit("the uninterrupted run failed")
    whole = artifact_bytes(folder / "whole")
    generator = random.Random(seed)  # noqa: S311  (which moments, no secret)
    kinds = (("steps", STEP), ("disk", DISK))
    totals = [(hooks, count_calls(folder, hooks, name)) for name, hooks in kinds]
    for number in range(count):
        hooks, total = totals[number % 2]
        name = f"out{number}"
        call = generator.randint(1, total)
        state = kill_and_resume(folder, name, hooks, call, generator.random() < 0.5)
        state["equal"] = _same(artifact_bytes(folder / name), whole, name)
        state["total"] = total
        sys.stdout.write(json.dumps(state) + "\n")


def _same(found: dict[str, bytes], whole: dict[str, bytes], name: str) -> bool:
    # The card's title is the name of its folder.
    title = f"# {name}\n".encode()
    found = {**found, "card.md": found["card.md"].replace(title, b"# whole\n")}
    return found == whole


def phase_drill(folder: Path) -> None:
    """Kill the writer of the fourth checkpoint before and after each call that changes the disk."""
    store = checkpoint.CheckpointStore(folder / "checkpoints")
    write = store.write
    for step in (1, 2, 3):
        write(snapshot(step))
    for call in range(1, 80):
        codes = []
        for before in (True, False):

            def work(call: int = call, before: bool = before) -> int:
                Calls(DISK, call, before)
                store.write(snapshot(4))
                return 0

            codes.append(in_child(work))
            notices: list[str] = []
            newest = store.newest(notices.append)
            state = {
                "code": codes[-1],
                "newest": None if newest is None else newest.step,
                "right": newest is not None and _is_snapshot(newest),
                "notices": notices,
                "steps": store.steps(),
                "temporary": sum(".tmp-" in p.name for p in store.folder.iterdir()),
            }
            # What the next start of a run does, and back to three checkpoints.
            store.remove_leftovers()
            state["left"] = sorted(p.name for p in store.folder.iterdir())
            directories.shutil.rmtree(store.folder)
            for step in (1, 2, 3):
                write(snapshot(step))
            sys.stdout.write(json.dumps(state) + "\n")
        if codes == [0, 0]:
            return


def snapshot(step: int) -> checkpoint.Snapshot:
    return checkpoint.Snapshot.of(
        step, {"run": "drill"}, {"x": torch.full((500,), step), "n": step}
    )


def _is_snapshot(found: checkpoint.Checkpoint) -> bool:
    expected = torch.full((500,), found.step)
    return found.state["n"] == found.step and torch.equal(found.state["x"], expected)


def limit_drill(folder: Path) -> None:
    """A file-size limit that some checkpoint meets."""
    for number, limit in enumerate((2000, 9000)):
        name = f"out{number}"

        def work(limit: int = limit, name: str = name) -> int:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            return main(arguments(folder, out=name))

        code = in_child(work)
        store = checkpoint.CheckpointStore(folder / f"{name}.run" / "checkpoints")
        newest = store.newest(lambda text: None)
        sys.stdout.write(
            json.dumps(
                {
                    "limit": limit,
                    "code": code,
                    "newest": None if newest is None else newest.step,
                    "beside": sorted(p.name for p in store.folder.parent.rglob("*")),
                    "resumed": in_child(
                        lambda name=name: main(arguments(folder, "--resume", out=name))
                    ),
                }
            )
            + "\n"
        )


def memory_drill(folder: Path) -> None:
    """Half a GB more than the process holds now is not enough for the model, or for a step."""
    status = Path("/proc/self/status").read_text()
    held = 1024 * int(status.split("VmSize:")[1].split()[0])
    wide = ("--set", "stages.0.train.model.width=16000")
    deep = ("--set", "stages.0.train.model.width=5200")
    for number, change in enumerate((wide, deep)):
        name = f"out{number}"

        def work(change: tuple[str, ...] = change, name: str = name) -> int:
            resource.setrlimit(resource.RLIMIT_AS, (held + 2**29, held + 2**29))
            return main(arguments(folder, *change, out=name))

        sys.stdout.write(json.dumps({"code": in_child(work)}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for drill in sys.argv[2:]:
        where = Path(sys.argv[1]) / drill.replace(":", "-")
        where.mkdir()
        write_recipe(where)
        kind, *numbers = drill.split(":")
        sys.stdout.write(json.dumps({"drill": kind}) + "\n")
        sys.stderr.write(f"drill {kind}\n")
        {"kill": kill_drill, "phases": phase_drill, "limit": limit_drill, "memory": memory_drill}[
            kind
        ](where, *map(int, numbers))
        sys.stdout.flush()
