# SPDX-License-Identifier: Apache-2.0
"""Every promise of the page has tests, and every test that it names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(
    r"^\| (\d+) \| (.+?) \| (.+) \|$", (ROOT / "docs/reference/promises.md").read_text(), re.M
)


def test_all_sixteen_are_there():
    assert [int(number) for number, _, _ in ROWS] == list(range(1, 17))


@pytest.mark.parametrize(("number", "promise", "held"), ROWS)
def test_a_promise_is_held_by_tests_that_exist(number, promise, held):
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", held)
    assert named, promise
    for path, name in named:
        functions = [
            node
            for node in ast.parse((ROOT / path).read_text()).body
            if isinstance(node, ast.FunctionDef) and node.name == name
        ]
        assert len(functions) == 1, (number, path, name)
        marks = " ".join(map(ast.unparse, functions[0].decorator_list))
        assert "mark.skip(" not in marks, (number, name)
        assert "xfail" not in marks, (number, name)
