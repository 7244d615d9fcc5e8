# SPDX-License-Identifier: Apache-2.0
"""What a search writes for itself comes back as it was; anything else is refused with a cure."""

import json
import math
import os

import pytest

from gossamer.errors import ArtifactError
from gossamer.search import Point, Trial
from gossamer.search.forecast import Forecasts, MaskForecast
from gossamer.search.records import read_record, write_record

POINT = Point("a", "fp32", 80.25, math.inf, 1.5, 2.0, 1000)
TRIAL = Trial("a", 1.0, (POINT, POINT), 10)


def test_records_come_back_as_they_were(tmp_path):
    for record in (TRIAL, Forecasts(1.0, (MaskForecast("2:4", 1.0, 0.5),))):
        write_record(tmp_path / "r.json", record)
        assert read_record(tmp_path / "r.json", type(record)) == record
    write_record(tmp_path / "r.json", {"model": "m"})
    assert read_record(tmp_path / "r.json", dict[str, str]) == {"model": "m"}


@pytest.mark.parametrize(
    "raw",
    [b"", b"[" * 100_000, b"[]", b"null", b"\xff", b'{"candidate": "a"}',
     json.dumps({"candidate": "a", "seconds": "x", "points": []}).encode(),
     json.dumps({"candidate": "a", "seconds": 1, "points": [{}]}).encode()],
)  # fmt: skip
def test_damaged_records_say_what_to_do(tmp_path, raw):
    path = tmp_path / "r.json"
    path.write_bytes(raw)
    with pytest.raises(ArtifactError, match=r"r\.json.*Delete this file"):
        read_record(path, Trial)


def test_links_and_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link.json").symlink_to(tmp_path / "pipe.json")
    with pytest.raises(ArtifactError, match="a pipe"):
        read_record(tmp_path / "pipe.json", Trial)
    with pytest.raises(ArtifactError, match="outside of the directory"):
        read_record(tmp_path / "out" / "link.json", Trial)
