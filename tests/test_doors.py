# SPDX-License-Identifier: Apache-2.0
"""Rooms are entered by their doors: the names that an `__all__` exports.

The `__init__` of a folder is its door, and a module with an `__all__` is a room of one file with a
door of its own. All other modules are private: only their own folder, and folders inside it, import
them. A door has eight names at most.
"""

import ast
from collections import Counter
from pathlib import Path

import gossamer

SOURCE = Path(gossamer.__file__).parent
WIDEST = 8


def names_of(path):
    """The `__all__` of a module, None if it has none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return ast.literal_eval(node.value)
    return None


def doors():
    """What each door exports, by its path in the package."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        names, parts = names_of(path), path.relative_to(SOURCE).with_suffix("").parts
        if path.name == "__init__.py":
            found[parts[:-1]] = names or []
        elif names is not None:
            found[parts] = names
    return found


DOORS = doors()


def past_doors(own, source):
    """Rooms of which a file in `own` imports more than their doors give, once for each name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gossamer."):
            module = tuple(node.module.split(".")[1:])
            folder = module if (SOURCE.joinpath(*module) / "__init__.py").exists() else module[:-1]
            if own[: len(folder)] == folder:
                continue
            for alias in node.names:
                if alias.name not in DOORS.get(module, ()) and alias.name != "_native":
                    yield ".".join(module if module in DOORS else folder)


def all_past_doors():
    found = Counter()
    for path in SOURCE.rglob("*.py"):
        found.update(past_doors(path.parent.relative_to(SOURCE).parts, path.read_text()))
    return dict(found)


def wide_doors():
    counts = {".".join(room): len(names) for room, names in DOORS.items() if room}
    return {room: number for room, number in counts.items() if number > WIDEST}


def test_nothing_goes_past_a_door():
    found = all_past_doors()
    assert not found, f"import what the door exports, or let it export the name: {found}"


def test_no_door_is_too_wide():
    found = wide_doors()
    assert not found, f"a door has at most {WIDEST} names; give the room rooms inside: {found}"


def test_an_import_past_a_door_would_be_found():
    assert list(past_doors(("runs",), "from gossamer.formats.csr import CSR")) == ["formats"]
    assert list(past_doors(("runs",), "from gossamer.formats import SparseMatrix")) == []
    assert list(past_doors(("formats",), "from gossamer.formats.csr import CSR")) == []
    # A module with an `__all__` is a door, too.
    assert list(past_doors(("runs",), "from gossamer.io.loading import _private")) == ["io.loading"]


def test_every_door_says_what_the_room_is_for():
    for room in DOORS:
        path = SOURCE.joinpath(*room, "__init__.py")
        path = path if path.exists() else SOURCE.joinpath(*room).with_suffix(".py")
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
