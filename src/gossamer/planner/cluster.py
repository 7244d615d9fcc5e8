# SPDX-License-Identifier: Apache-2.0
"""What a cluster is, as data; from a file or a built-in name to a checked `ClusterSpec`, and back.

The data is frozen, closed to unknown keys and free of torch. All faults of a file are told at once,
by line. Units stand in the names: gb is 1e9 bytes, gb_s is 1e9 bytes per second, us is
microseconds.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gossamer.errors import ClusterError
from gossamer.plain_data import map_leaves
from gossamer.planner.collectives import Collective
from gossamer.recipes.base import Settings, as_list, whole_number
from gossamer.recipes.faults import Path as FieldPath
from gossamer.recipes.faults import RecipeFaults
from gossamer.recipes.phrases import field_words, near, plain, show
from gossamer.recipes.yaml_lines import parse_yaml, read_file

SCHEMA_VERSION: Final = 1
GB: Final = 1e9
MAX_RANKS: Final = 1 << 20


class _Data(Settings):
    model_config = ConfigDict(allow_inf_nan=False, populate_by_name=True)


_Amount = Annotated[float, Field(gt=0.0, le=1e6)]
_Part = Annotated[float, Field(gt=0.0, le=1.0)]


class Memory(_Data):
    """Memory of one rank."""

    gb: _Amount
    """Of one rank, in 1e9 bytes."""
    usable: _Part = 0.94
    """Fraction that an allocator can really fill."""
    overhead_gb: float = Field(default=0.0, ge=0.0, le=1e6)
    """Held by the runtime before a model is there."""

    @property
    def bytes_for_training(self) -> float:
        """What a plan may fill."""
        return (self.gb * self.usable - self.overhead_gb) * GB


class CompactSpeed(_Data):
    """How much faster products with a compact weight are than with a dense one."""

    density: _Part
    """Kept fraction of the weight."""
    speedup: float = Field(gt=0.0, le=1e3)
    """Dense time over compact time, forward and backward."""


class Compute(_Data):
    """Arithmetic of one rank."""

    tflops: _Amount
    """Peak of one rank, 1e12 per second."""
    efficiency: _Part = 1.0
    """Part of the peak that training steps reach."""
    memory_gb_s: _Amount
    """Memory bandwidth that is reached."""
    compact: Annotated[tuple[CompactSpeed, ...], BeforeValidator(as_list)] = Field(
        default=(), max_length=32
    )
    """Measured gain of sparse kernels; empty: products stay dense."""

    @property
    def flops(self) -> float:
        """Floating-point operations per second in a training step."""
        return self.tflops * 1e12 * self.efficiency


class LinkSpec(_Data):
    """A way between two ranks."""

    gb_s: _Amount
    """Bandwidth of one flow in one direction."""
    latency_us: float = Field(default=0.0, ge=0.0, le=1e9)
    """Of a message."""

    @property
    def bytes_per_second(self) -> float:
        """Of one flow."""
        return self.gb_s * GB

    @property
    def latency_seconds(self) -> float:
        """Of a message."""
        return self.latency_us * 1e-6


class Links(_Data):
    """The network."""

    inside: LinkSpec
    """Between neighbouring ranks of one node."""
    between: LinkSpec
    """One flow between two nodes."""
    node_gb_s: _Amount
    """All flows that leave one node together, one direction."""
    collective: Collective = "ring"
    """How replicas add up gradients: ring, tree, server, or best, the faster of the first two."""
    ring_efficiency: _Part = 0.9
    """Part of the bandwidth collectives reach."""
    overlap: float = Field(default=0.0, ge=0.0, le=1.0)
    """Part of the backward pass during which gradients of replicas without stages travel; 0: they
    wait for it."""


class ClusterSpec(_Data):
    """Equal nodes with equal ranks, counted through shards, then stages, then replicas."""

    version: Annotated[Literal[1], BeforeValidator(whole_number)] = Field(alias="gossamer-cluster")
    """'gossamer-cluster: 1' at the top."""
    description: Annotated[str, Field(max_length=1000)] = ""
    """One line for people."""
    figures: Literal["assumed", "measured"] = "assumed"
    """Where the figures come from."""
    device: Literal["gpu", "cpu"] = "gpu"
    """Decides which states of training are compared."""
    nodes: int = Field(ge=1, le=MAX_RANKS)
    """How many there are."""
    ranks_per_node: int = Field(ge=1, le=4096)
    """Processes, or accelerators, of a node."""
    shared_cores: int | None = Field(default=None, ge=1, le=65536)
    """Cluster in a box: all ranks compute on these cores of one machine."""
    memory: Memory
    """Of one rank."""
    compute: Compute
    """Of one rank."""
    links: Links
    """Between ranks."""

    @property
    def ranks(self) -> int:
        """Of the whole cluster."""
        return self.nodes * self.ranks_per_node

    @model_validator(mode="after")
    def _check(self) -> "ClusterSpec":
        if self.ranks > MAX_RANKS:
            raise ValueError(f"nodes: {self.ranks} ranks, more than {MAX_RANKS}.")
        if self.memory.bytes_for_training <= 0:
            raise ValueError(
                f"memory.overhead_gb: {self.memory.overhead_gb:g} leaves nothing of"
                f" {self.memory.gb:g} x {self.memory.usable:g}."
            )
        return self


_BUILTIN = Path(__file__).parent / "clusters"
_HINT = "See 'gossamer plan --help'."
_MODELS: dict[str, type[Settings]] = {
    "memory": Memory,
    "compute": Compute,
    "links": Links,
    "inside": LinkSpec,
    "between": LinkSpec,
    "compact": CompactSpeed,
}


class ClusterFaults(ClusterError, RecipeFaults):
    """All faults of one description."""


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
    where, raw = plain(str(source)), read_file(Path(source), ClusterError)
    if raw is None:
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
        raise ClusterFaults([document.fault((), text)])
    try:
        return ClusterSpec.model_validate(document.data)
    except ValidationError as error:
        found = [document.fault(path, text) for path, text in _findings(error)]
        raise ClusterFaults(sorted(found, key=lambda f: (f.line or 0, f.path))) from error


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
