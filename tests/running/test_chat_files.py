# SPDX-License-Identifier: Apache-2.0
"""Files beside a chat model that are not what they should be; and the cache of measured times."""

import json

import pytest

from gossamer.errors import ArtifactError
from gossamer.ops.timing import Race
from gossamer.running.choice import CostKey, CostTable
from gossamer.running.text.chat import ChatTemplate

CONFIG = "tokenizer_config.json"


def template(value):
    return ChatTemplate({CONFIG: json.dumps({"chat_template": value}).encode()})


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b'{"a":' * 100_000, b"[" * 100_000, b"\xff", rb'{"a": "\ud800"}',
     b'{"a": 1, "a": 2}', b'{"eos_token": NaN}', b'{"a": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_settings_that_are_no_json_object(raw):
    with pytest.raises(ArtifactError, match=r"^tokenizer_config\.json: "):
        ChatTemplate({CONFIG: raw})


@pytest.mark.parametrize(
    "value",
    [[{"name": ["default"], "template": "x"}], [{"name": "default", "template": {}}], ["x"], 7,
     [{"template": "x"}], {"default": "x"}, [[]], True],
)  # fmt: skip
def test_templates_of_another_shape_are_refused_with_a_cure(value):
    with pytest.raises(ArtifactError, match=r"chat_template holds .*chat_template\.jinja"):
        template(value)


def test_templates_as_files_have_them():
    assert template("x")
    assert template([{"name": "tool_use", "template": "y"}, {"name": "default", "template": "x"}])
    assert not template([{"name": "tool_use", "template": "y"}])
    assert not template([])
    assert not template(None)


@pytest.mark.parametrize(
    "raw",
    [b"[" * 100_000, b"", b"\xff", b'{"version": 3, "entries": {"a": [1, 2]}}', b"null",
     b'{"version": 3, "entries": {"a": {"us": [' + b"9" * 400 + b'], "spread": 0}}}',
     b'{"version": 3, "entries": [1]}', b'{"version": 3, "entries": {"a": {"us": ["x"]}}}'],
)  # fmt: skip
def test_a_damaged_cache_of_times_is_empty(tmp_path, raw):
    path = tmp_path / "kernels.json"
    path.write_bytes(raw)
    table = CostTable(path)
    assert len(table) == 0
    key = CostKey("panel", 8, 8, "2:4", 0.5, 1, 1)
    table.put([key], Race((2.0, 1.0), 0.0))
    table.save()
    assert CostTable(path).get([key]) == Race((2.0, 1.0), 0.0)
