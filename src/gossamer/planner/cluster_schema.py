# SPDX-License-Identifier: Apache-2.0
"""What a cluster is, as data: frozen, closed to unknown keys, free of torch.

Units stand in the names: gb is 1e9 bytes, gb_s is 1e9 bytes per second, us is microseconds.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

SCHEMA_VERSION: Final = 1
GB: Final = 1e9
MAX_RANKS: Final = 1 << 20


def _whole(value: Any) -> Any:
    """Literals compare by ==, and to Python true is 1 and 1.0 is 1."""
    if isinstance(value, bool | float):
        raise PydanticCustomError("int_type", "expected a whole number")
    return value


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class _Data(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True
    )


_Amount = Annotated[float, Field(gt=0.0, le=1e6)]
_Part = Annotated[float, Field(gt=0.0, le=1.0)]


class Memory(_Data):
    """Memory of one rank."""

    gb: _Amount = Field(description="Of one rank, in 1e9 bytes.")
    usable: _Part = Field(default=0.94, description="Fraction that an allocator can really fill.")
    overhead_gb: float = Field(
        default=0.0, ge=0.0, le=1e6, description="Held by the runtime before a model is there."
    )

    @property
    def bytes_for_training(self) -> float:
        """What a plan may fill."""
        return (self.gb * self.usable - self.overhead_gb) * GB


class CompactSpeed(_Data):
    """How much faster products with a compact weight are than with a dense one."""

    density: _Part = Field(description="Kept fraction of the weight.")
    speedup: float = Field(
        gt=0.0, le=1e3, description="Dense time over compact time, forward and backward."
    )


class Compute(_Data):
    """Arithmetic of one rank."""

    tflops: _Amount = Field(description="Peak of one rank, 1e12 per second.")
    efficiency: _Part = Field(
        default=1.0, description="Part of the peak that training steps reach."
    )
    memory_gb_s: _Amount = Field(description="Memory bandwidth that is reached.")
    compact: Annotated[tuple[CompactSpeed, ...], BeforeValidator(_as_tuple)] = Field(
        default=(),
        max_length=32,
        description="Measured gain of sparse kernels; empty: products stay dense.",
    )

    @property
    def flops(self) -> float:
        """Floating-point operations per second in a training step."""
        return self.tflops * 1e12 * self.efficiency


class LinkSpec(_Data):
    """A way between two ranks."""

    gb_s: _Amount = Field(description="Bandwidth of one flow in one direction.")
    latency_us: float = Field(default=0.0, ge=0.0, le=1e9, description="Of a message.")

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

    inside: LinkSpec = Field(description="Between neighbouring ranks of one node.")
    between: LinkSpec = Field(description="One flow between two nodes.")
    node_gb_s: _Amount = Field(description="All flows that leave one node together, one direction.")
    ring_efficiency: _Part = Field(
        default=0.9, description="Part of the bandwidth collectives reach."
    )
    overlap: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Part of the backward pass during which gradients of replicas without stages"
        " travel; 0: they wait for it.",
    )


class ClusterSpec(_Data):
    """Equal nodes with equal ranks, counted through shards, then stages, then replicas."""

    version: Annotated[Literal[1], BeforeValidator(_whole)] = Field(
        alias="gossamer-cluster", description="'gossamer-cluster: 1' at the top."
    )
    description: Annotated[str, Field(max_length=1000)] = Field(
        default="", description="One line for people."
    )
    figures: Literal["assumed", "measured"] = Field(
        default="assumed", description="Where the figures come from."
    )
    device: Literal["gpu", "cpu"] = Field(
        default="gpu", description="Decides which states of training are compared."
    )
    nodes: int = Field(ge=1, le=MAX_RANKS, description="How many there are.")
    ranks_per_node: int = Field(ge=1, le=4096, description="Processes, or accelerators, of a node.")
    shared_cores: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Cluster in a box: all ranks compute on these cores of one machine.",
    )
    memory: Memory = Field(description="Of one rank.")
    compute: Compute = Field(description="Of one rank.")
    links: Links = Field(description="Between ranks.")

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
