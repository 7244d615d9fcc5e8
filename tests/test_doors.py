# SPDX-License-Identifier: Apache-2.0
"""Rooms are entered by their doors: names that a folder's `__init__` exports.

A file may import modules of its own folder and of the folders around it; of every other folder only
what its door names. The lists of what still goes past a door, and of doors that are too wide, may
only shrink.
"""

import ast
from collections import Counter
from pathlib import Path

import gossamer

SOURCE = Path(gossamer.__file__).parent
PACKAGES = {path.parent.relative_to(SOURCE).parts: path for path in SOURCE.rglob("__init__.py")}
WIDEST = 8
PAST_DOORS = {
    "cli": 1,
    "cli.shell": 1,
    "formats": 1,
    "io.safe_files.tensors": 1,
    "nn.surgery.slimming": 2,
    "pruning": 3,
    "pruning.schedules": 13,
    "recipes": 1,
    "recipes.stages": 5,
    "report.charts": 3,
    "running.rivals.engine_scripts": 1,
    "runs.stages": 5,
    "runs.training": 5,
    "training.checkpoint": 9,
    "training.distributed.pipeline": 4,
    "training.distributed.processes": 9,
    "training.loop": 8,
}
WIDE_DOORS = {
    "cli.models": 11,
    "cli.shell": 17,
    "data": 9,
    "formats": 9,
    "io": 13,
    "io.artifact": 23,
    "io.pruners": 14,
    "io.safe_files": 13,
    "io.safe_files.tensors": 12,
    "nn": 14,
    "nn.families": 10,
    "nn.layer_kinds": 10,
    "nn.layers": 9,
    "nn.layers.parts": 12,
    "nn.operator_graph": 9,
    "nn.surgery.carried": 9,
    "nn.surgery.slimming": 9,
    "ops": 11,
    "ops.engines": 16,
    "ops.timing": 11,
    "ops.training": 18,
    "patterns": 18,
    "planner": 13,
    "pruning.calibration": 21,
    "pruning.gradients": 10,
    "pruning.solvers": 12,
    "recipes": 22,
    "recipes.stages": 18,
    "report": 11,
    "running.encoder": 10,
    "running.server": 9,
    "running.text": 9,
    "runs": 20,
    "search": 15,
    "training.loop": 12,
    "training.memory": 9,
    "training.recovery": 14,
}


def names_of(path):
    """The `__all__` of a door."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return []


def room_of(module):
    parts = tuple(module.split(".")[1:])
    return parts if parts in PACKAGES else parts[:-1]


def past_doors(own, source):
    """Rooms of which a file in `own` imports more than their doors give, once for each name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gossamer."):
            room = room_of(node.module)
            if not room or own[: len(room)] == room:
                continue
            through = set(names_of(PACKAGES[room])) if node.module.split(".")[1:] == [*room] else ()
            for alias in node.names:
                if alias.name not in through and alias.name != "_native":
                    yield ".".join(room)


def all_past_doors():
    found = Counter()
    for path in SOURCE.rglob("*.py"):
        found.update(past_doors(path.parent.relative_to(SOURCE).parts, path.read_text()))
    return dict(found)


def wide_doors():
    counts = {".".join(room): len(names_of(path)) for room, path in PACKAGES.items() if room}
    return {room: number for room, number in counts.items() if number > WIDEST}


def test_less_and_less_goes_past_a_door():
    found = all_past_doors()
    more = {room: number for room, number in found.items() if number > PAST_DOORS.get(room, 0)}
    assert not more, f"import what the door exports, or let it export the name: {more}"
    assert found == PAST_DOORS, "fewer than listed: make the list smaller"


def test_doors_become_no_wider():
    found = wide_doors()
    more = {room: number for room, number in found.items() if number > WIDE_DOORS.get(room, 0)}
    assert not more, f"a door has at most {WIDEST} names: {more}"
    assert found == WIDE_DOORS, "narrower than listed: make the list smaller"


def test_an_import_past_a_door_would_be_found():
    assert list(past_doors(("runs",), "from gossamer.formats.csr import CSR")) == ["formats"]
    assert list(past_doors(("runs",), "from gossamer.formats import SparseMatrix")) == []
    assert list(past_doors(("formats",), "from gossamer.formats.csr import CSR")) == []


def test_every_door_says_what_the_room_is_for():
    for path in PACKAGES.values():
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_no_folder_is_a_pile():
    counts = Counter(path.parent for path in SOURCE.rglob("*.py"))
    piles = {str(folder.relative_to(SOURCE)): n for folder, n in counts.items() if n > 25}
    assert not piles


def test_no_two_public_classes_share_a_name():
    found = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, number in found.items() if number > 1] == []
