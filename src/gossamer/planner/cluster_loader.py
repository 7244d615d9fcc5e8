# SPDX-License-Identifier: Apache-2.0
"""From a file or a built-in name to a checked `ClusterSpec`, and back.

All faults of a file are told at once, by line.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import BaseModel, ValidationError

from gossamer.errors import ClusterError
from gossamer.named_files import open_named
from gossamer.plain_data import map_leaves
from gossamer.planner.cluster_schema import (
    ClusterSpec,
    CompactSpeed,
    Compute,
    Links,
    LinkSpec,
    Memory,
)
from gossamer.recipes import (
    MAX_BYTES,
    Fault,
    RecipeFaults,
    field_words,
    near,
    parse_yaml,
    plain,
    show,
)
from gossamer.recipes.faults import Path as FieldPath

_BUILTIN = Path(__file__).parent / "clusters"
_HINT = "See 'gossamer plan --help'."
_MODELS: dict[str, type[BaseModel]] = {
    "memory": Memory,
    "compute": Compute,
    "links": Links,
    "inside": LinkSpec,
    "between": LinkSpec,
    "compact": CompactSpeed,
}


class ClusterFaults(ClusterError):
    """All faults of one description."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.faults = faults
        super().__init__("\n".join(map(str, faults)))


def builtin_clusters() -> list[str]:
    """Names of the clusters that come with gossamer."""
    return sorted(file.stem for file in _BUILTIN.glob("*.yaml"))


def load_cluster(source: str | os.PathLike[str]) -> ClusterSpec:
    """The cluster in a file, or the built-in one of that name.

    Raises:
        ClusterError: with all faults; each has file, line, path, value and what is expected.
    """
    if isinstance(source, str) and source in builtin_clusters():
        return parse_cluster((_BUILTIN / f"{source}.yaml").read_bytes(), f"{source}.yaml")
    where = plain(str(source))
    try:
        missing = not Path(source).exists()
        if not missing:
            with open_named(source, ClusterError) as file:
                raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ClusterError(f"{where}: cannot be read ({reason}).") from error
    if missing:
        names = builtin_clusters()
        raise ClusterError(
            f"{where}: there is no such file or built-in cluster.{near(str(source), names)} Built"
            f" in: {', '.join(names)}."
        )
    return parse_cluster(raw, where)


def parse_cluster(raw: bytes, source: str) -> ClusterSpec:
    """The cluster in the bytes of a file; `source` is its name in messages."""
    try:
        document = parse_yaml(raw, source)
    except RecipeFaults as error:
        raise ClusterFaults(error.faults) from error
    if not isinstance(document.data, dict):
        text = f"expected a mapping that starts 'gossamer-cluster: 1', got {show(document.data)}."
        raise ClusterFaults((document.fault((), text),))
    try:
        return ClusterSpec.model_validate(document.data)
    except ValidationError as error:
        found = [document.fault(path, text) for path, text in _findings(error)]
        raise ClusterFaults(tuple(sorted(found, key=lambda f: (f.line or 0, f.path)))) from error


def cluster_text(cluster: ClusterSpec) -> str:
    """The description as a file that `load_cluster` reads; figures have four digits."""
    content = map_leaves(
        cluster.model_dump(by_alias=True, exclude_none=True),
        lambda value: float(f"{value:.4g}") if isinstance(value, float) else value,
    )
    return yaml.safe_dump(content, sort_keys=False, width=100)


def _findings(error: ValidationError) -> Iterator[tuple[FieldPath, str]]:
    for found in error.errors(include_url=False):
        path: FieldPath = found["loc"]
        if found["type"] == "value_error":
            # A rule over several fields says `field: what is wrong`.
            name, _, text = str(found["ctx"]["error"]).partition(": ")
            yield (*path, *name.split(".")), text
        elif path == ("gossamer-cluster",):
            value = "nothing" if found["type"] == "missing" else show(found["input"])
            yield path, f"expected 'gossamer-cluster: 1' at the top of the file, got {value}."
        else:
            names = [part for part in path[:-1] if isinstance(part, str)]
            model = _MODELS[names[-1]] if names else ClusterSpec
            yield path, field_words(str(path[-1]), found, model.model_fields, _HINT)
