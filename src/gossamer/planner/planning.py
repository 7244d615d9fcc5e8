# SPDX-License-Identifier: Apache-2.0
"""`plan`: every legal layout of a model on a cluster, the best one per state, and why."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from gossamer.errors import InputError
from gossamer.planner.candidates import DEFAULT_SCHEDULES, Evaluator, PlannedLayout, layouts
from gossamer.planner.cluster import ClusterSpec, load_cluster
from gossamer.planner.model_shape import GPTSizes, ModelShape
from gossamer.planner.pipeline_orders import ScheduleName
from gossamer.planner.states import State, compared_states, find_state
from gossamer.planner.workload import RankLayout, StepSpec

if TYPE_CHECKING:
    from torch import nn

Choice = Literal["fastest", "smallest-pipeline"]
# At most so many of the fastest layouts in closed form are played event by event.
_PLAYED = 16
DEFAULT_SPARSITY = 0.9


@dataclass(frozen=True)
class StatePlan:
    """One state of training on a cluster.

    Attributes:
        state: how weights are held.
        best: the layout that was chosen; None if none fits.
        candidates: every legal layout, fastest first, those that fit before the others.
        evaluator: evaluates further layouts.
    """

    state: State
    best: PlannedLayout | None
    candidates: tuple[PlannedLayout, ...]
    evaluator: Evaluator

    @property
    def leanest(self) -> PlannedLayout:
        """The layout with the least memory."""
        return min(self.candidates, key=lambda found: found.memory.total)


@dataclass(frozen=True)
class ClusterPlan:
    """What a cluster would bring. Nothing was run.

    Attributes:
        shape: of the model.
        cluster: where.
        work: what.
        ranks: that are used.
        states: plans, the dense one first.
    """

    shape: ModelShape
    cluster: ClusterSpec
    work: StepSpec
    ranks: int
    states: tuple[StatePlan, ...]

    def state(self, name: str) -> StatePlan:
        """The plan of a state."""
        return next(found for found in self.states if found.state.name == name)

    def to_dict(self, most: int = 20) -> dict[str, Any]:
        """Plain data; `most` candidates of each state."""
        return {
            "forecast": True,
            "model": {
                "name": self.shape.name,
                "parameters": self.shape.parameters,
                "prunable": self.shape.prunable,
                "forward_flops_per_token": self.shape.flops_per_token,
                "tokens": self.shape.tokens,
                "layers": self.shape.blocks,
            },
            "cluster": self.cluster.model_dump(by_alias=True),
            "workload": asdict(self.work),
            "ranks": self.ranks,
            "states": [
                {
                    "state": found.state.name,
                    "bytes_per_pruned_parameter": found.state.pruned.bytes_per_parameter(
                        self.work.density if found.state.is_sparse else 1.0
                    ),
                    "best": None if found.best is None else found.best.to_dict(),
                    "layouts": len(found.candidates),
                    "fitting": sum(candidate.fits for candidate in found.candidates),
                    "candidates": [one.to_dict() for one in found.candidates[:most]],
                }
                for found in self.states
            ],
        }


def plan_workload(
    shape: ModelShape,
    cluster: ClusterSpec,
    work: StepSpec,
    *,
    ranks: int | None = None,
    states: Sequence[State] | None = None,
    schedules: Sequence[ScheduleName] = DEFAULT_SCHEDULES,
    max_shard: int | None = None,
    choice: Choice = "fastest",
) -> ClusterPlan:
    """Every layout of a described workload.

    Args:
        shape: of the model.
        cluster: where.
        work: what.
        ranks: to use; default: all of the cluster.
        states: to compare; default: those of the cluster's device.
        schedules: of pipelines.
        max_shard: most shards; 1 leaves sharding out.
        choice: "fastest", or "smallest-pipeline" as AxoNN chooses: the fewest stages that fit.
    """
    used = cluster.ranks if ranks is None else ranks
    if not 1 <= used <= cluster.ranks:
        raise InputError(f"ranks: the cluster has {cluster.ranks}, got {used}.")
    found = [
        _plan_state(Evaluator(shape, cluster, state, work), used, schedules, max_shard, choice)
        for state in (compared_states(cluster) if states is None else states)
    ]
    return ClusterPlan(shape, cluster, work, used, tuple(found))


def _plan_state(
    evaluator: Evaluator,
    ranks: int,
    schedules: Sequence[ScheduleName],
    max_shard: int | None,
    choice: Choice,
) -> StatePlan:
    work = evaluator.work
    made = (evaluator.evaluate(one) for one in _layouts(evaluator, ranks, schedules, max_shard))
    candidates = [one for one in made if one is not None]
    if not candidates:
        raise InputError(
            f"batch: {work.batch} samples in microbatches of {work.microbatch or 'any size'} cannot"
            f" be shared by {ranks} ranks. Choose a batch that a divisor of {ranks} divides."
        )
    candidates.sort(key=lambda one: (not one.fits, one.time.total, one.memory.total))
    # The closed form errs both ways for uneven stages.
    count = min(_PLAYED, sum(one.fits for one in candidates))
    if evaluator.cluster.shared_cores is not None:
        # Ranks that share cores have no closed form worth the name.
        count = len(candidates)
    played = [*map(evaluator.simulated, candidates[:count]), *candidates[count:]]
    played.sort(
        key=lambda one: (not one.fits, one.simulated is None, one.seconds, one.memory.total)
    )
    fitting = [one for one in played if one.fits]
    if choice == "smallest-pipeline":
        fitting.sort(key=lambda one: (one.layout.grid.pipeline, one.time.total))
    return StatePlan(evaluator.state, next(iter(fitting), None), tuple(played), evaluator)


def _layouts(
    evaluator: Evaluator,
    ranks: int,
    schedules: Sequence[ScheduleName],
    max_shard: int | None,
) -> Iterator[RankLayout]:
    experts = evaluator.shape.experts
    return layouts(ranks, evaluator.work, schedules, max_shard, experts)


def plan(  # noqa: PLR0913  (one argument per thing a user may ask for)
    model: "str | nn.Module | GPTSizes | ModelShape",
    cluster: str | os.PathLike[str] | ClusterSpec = "workstations",
    *,
    batch: int | None = None,
    sparsity: float | None = None,
    microbatch: int | None = None,
    tokens: int | None = None,
    ranks: int | None = None,
    states: Sequence[str] | None = None,
    schedules: Sequence[ScheduleName] | None = None,
    data: str | None = None,
    overrides: Sequence[str] = (),
) -> ClusterPlan:
    """What training a model on a cluster would cost, for dense, SAMO and compact states.

    Nothing is run and no weight is allocated.

    Args:
        model: a shape such as "gpt3-13b" or "mixtral-8x7b", a recipe, an artifact, a Hugging Face
            directory, or a module (the meta device is fine).
        cluster: the name of a built-in one, a file, or a description.
        batch: samples of a step over all ranks; default: of the recipe, else the ranks.
        sparsity: of pruned weights; default: of the recipe or artifact, else 0.9.
        microbatch: samples that go through a pipeline together; default: every power of two.
        tokens: of a sample, where the model leaves it open.
        ranks: to use; default: all.
        states: names of `gossamer.planner.states.STATES` to compare; default: those of the device.
        schedules: of pipelines; default: those of `torch.distributed.pipelining`.
        data: of a recipe on images or labels, as in `gossamer train`: sizes of inputs and outputs.
        overrides: of a recipe, as in `gossamer train --set`.
    """
    where = cluster if isinstance(cluster, ClusterSpec) else load_cluster(cluster)
    chosen = [find_state(name) for name in states or ()] or None
    from gossamer.planner.model_sources import describe

    described = describe(model, tokens=tokens, data=data, overrides=overrides)
    sparsities = (sparsity, described.sparsity, DEFAULT_SPARSITY)
    work = StepSpec(
        batch=batch or described.batch or (where.ranks if ranks is None else ranks),
        sparsity=next(value for value in sparsities if value is not None),
        microbatch=microbatch,
        recompute=described.recompute,
        table_wire=described.table_wire,
    )
    return plan_workload(
        described.shape,
        where,
        work,
        ranks=ranks,
        states=chosen,
        schedules=schedules or DEFAULT_SCHEDULES,
    )
