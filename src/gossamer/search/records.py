# SPDX-License-Identifier: Apache-2.0
"""What a search writes down for a run that goes on: dataclasses as JSON, checked when read back."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from gossamer.errors import ArtifactError
from gossamer.io.safe_files import MAX_MANIFEST_BYTES
from gossamer.io.safe_files.directories import write_whole
from gossamer.io.safe_files.documents import parse_json
from gossamer.named_files import read_inside
from gossamer.plain_data import map_leaves

Record = TypeVar("Record")


def write_record(path: Path, record: Any) -> None:
    """Write a dataclass; it is on disk when this returns."""
    plain = record if isinstance(record, dict) else map_leaves(asdict(record), _plain)
    write_whole(path, json.dumps(plain, indent=1, allow_nan=False).encode())


def read_record(path: Path, kind: type[Record]) -> Record:
    """The record in a file; ArtifactError says what is wrong with it and what to do."""
    try:
        raw = read_inside(path.parent, path.name, MAX_MANIFEST_BYTES)
        content = parse_json(raw, str(path), max_bytes=MAX_MANIFEST_BYTES)
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(ascii(part)[:40].strip("'") for part in first["loc"])
        fault = f"{path}: {place}: {first['msg']}."
        raise ArtifactError(f"{fault} Delete this file to measure again.") from error
    except ArtifactError as error:
        raise ArtifactError(f"{error} Delete this file to measure again.") from error


def _plain(value: Any) -> Any:
    """JSON has neither NaN nor Inf; they are written as text."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
