# SPDX-License-Identifier: Apache-2.0
"""The steps of a training loop on a mesh of processes.

While masks move, every rank has the whole model and DDP joins all of them: a schedule then sees the
same weights and gradients everywhere and moves the same masks. Once they are final, the compact
model is laid out on the mesh. What a step decides (skip, clip, stop) is decided on numbers that all
ranks have agreed on.

An objective `loss(model, batch)` is taken apart for a pipeline without knowing its code. The first
stage needs what the objective would call the model with, the last one the loss of an output: so it
is called with a model that only notes its arguments, and with one that only returns what is there
already. It must call the model once, and its loss must be a mean over samples.
"""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from gossamer.data import Divisible, SharedEvaluation, generator_of
from gossamer.errors import InputError
from gossamer.nn.batch import Answered
from gossamer.training.distributed.experts import count_together, sent_tokens
from gossamer.training.distributed.pipeline import LayerPipeline, PipelineSettings, pieces
from gossamer.training.distributed.placement.gradients import Wire, average, replicated
from gossamer.training.distributed.placement.placement import RankPlacement, check_model, lay_out
from gossamer.training.distributed.placement.whole_model import (
    FixedFigures,
    gather,
    whole_not_finite,
    whole_state_bytes,
)
from gossamer.training.distributed.processes import RankSession, check_masks
from gossamer.training.distributed.processes.messages import broadcast_json
from gossamer.training.distributed.tables import (
    Sharding,
    TableExchange,
    TableSettings,
    sparse_tables,
)
from gossamer.training.distributed.tables.scales import SharedScales
from gossamer.training.experts import follow_experts
from gossamer.training.loop import Objective
from gossamer.training.loop.processes import (
    Agreement,
    Evaluate,
    LossAndNumbers,
    Processes,
    States,
    loss_of,
    recomputing,
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class MeshSettings:
    """How the processes of a mesh work together.

    Attributes:
        wire: how gradients travel between replicas: as they are, or rounded to bf16.
        tables: how touched rows of tables travel between replicas.
        shard_tables: whether replicas share the rows of tables instead, once masks are final.
        microbatches: of a batch in a pipeline.
        schedule: of the pipeline.
        seed: of what differs between ranks, such as dropout.
        room: a folder of the leading rank in which shared tables are put together for checkpoints
            and at the end, as files; None: in its memory.
    """

    wire: Wire = "full"
    tables: TableSettings = field(default_factory=TableSettings)
    shard_tables: Sharding = "none"
    microbatches: int = 1
    schedule: str = "1f1b"
    seed: int = 0
    room: Path | None = None


class ProcessMesh(Processes):
    """All processes of a session, as a `Loop` uses them.

    Args:
        session: they are there.
        settings: how they work together.
    """

    def __init__(self, session: RankSession, settings: MeshSettings | None = None) -> None:
        self.session, self.settings = session, settings or MeshSettings()
        self.is_lead = session.is_lead
        self.placement: RankPlacement | None = None
        self._fixed: FixedFigures | None = None
        self._model: nn.Module | None = None
        self._exchange: TableExchange | None = None
        self._scales: SharedScales | None = None
        self._talk: dist.ProcessGroup | None = None
        self._copies: dict[nn.Parameter, int] = {}
        self._part, self._num_parts = 0, 1
        self._stop = 0
        self._stack = ExitStack()

    def arrange(self) -> None:
        """DDP over all ranks while masks move; the mesh once they are final."""
        run, session, settings = self.run, self.session, self.settings
        sizes, place = session.sizes, session.place
        if sizes.num_ranks == sizes.num_parts > 1:
            count_together(run.model, dist.group.WORLD)
        check_masks(run.model, f"after step {run.step}", session.patient)
        self._part, self._num_parts = sizes.part(place), sizes.num_parts
        check_model(
            sizes,
            run.model,
            run.optimizer,
            run.settings.precision,
            settings.schedule,
            settings.microbatches,
        )
        if not run.is_settled:
            if num_samples(run.batches[run.taken]) % sizes.num_ranks == 0:
                self._part, self._num_parts = session.rank, sizes.num_ranks
            # Otherwise ranks of one pipeline, or of shared heads, compute the same: the mean stays.
            self._copies = dict.fromkeys(run.parameters, sizes.num_ranks)
            self._model = self._replicated(run.model, dist.group.WORLD)
            return
        self._fixed = FixedFigures.of(run.model, run.control.sparsity())
        if settings.shard_tables != "none" and self._talk is None:
            # A group of their own: gradients of other layers travel at the same time.
            self._talk = dist.new_group(timeout=timedelta(seconds=session.watch.limit))
        pipeline = self._pipeline if sizes.pipeline > 1 else None
        placement = lay_out(session, run, pipeline, settings.shard_tables, self._talk)
        self.placement = placement
        self._copies = {shard.trained: shard.copies for shard in placement.shards}
        for module in placement.modules:
            self._stack.enter_context(recomputing(module, run.settings.recompute))
        if sizes.expert > 1:
            # The experts of this rank are in no layer of the whole model.
            for handle in follow_experts(placement.modules[0], run.optimizer):
                self._stack.callback(handle.remove)
        if placement.pipeline is not None:
            self._model = PipelinedModel(placement.pipeline)
            self._model.train(run.settings.in_train_mode)
        elif sizes.shard == 1 and sizes.data * sizes.expert > 1:
            # With expert ranks there are no others: all of them are replicas of what is no expert.
            replicas = session.group("data") if sizes.expert == 1 else dist.group.WORLD
            self._model = self._replicated(placement.modules[0], replicas)
        else:
            self._model = placement.modules[0]

    def _replicated(self, model: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
        """`model` in DDP; tables leave it to packets of touched rows."""
        tables = sparse_tables(model)
        if tables:
            self._exchange = TableExchange(tables, self.settings.tables, group)
        self._scales = SharedScales.of(model, group)
        sharded = [] if self.placement is None else self.placement.shards
        apart = [*tables.values()]
        apart += [shard.used for shard in sharded if shard.over_data or shard.over_expert]
        return replicated(model, group, self.settings.wire, apart=apart)

    def _pipeline(self, model: nn.Module) -> LayerPipeline:
        """The stages of `model`, cut by what one microbatch costs."""
        run, count = self.run, self.settings.microbatches
        share = cut_batch(run.batches[run.taken], self._part, self._num_parts)
        args, keywords = inputs_of(run.objective, cut_batch(share, 0, count))
        return LayerPipeline(
            model,
            lambda output, batch: loss_of(run.objective, Answered(output), batch)[0],
            args,
            PipelineSettings(num_microbatches=count, schedule=self.settings.schedule),
            keywords=keywords,
            group=self.session.group("pipeline"),
        )

    def dissolve(self) -> None:
        """Make the model whole on the leading rank, as if it had trained alone."""
        self._model = self._exchange = self._scales = None
        self._stack.close()
        count_together(self.run.model, None)
        if self.placement is None:
            return
        whole = gather(self.session, self.placement, self.run, self.settings.room)
        if whole is not None:
            whole.restore(self.run, self.placement)
            # The other ranks never have the whole model again.
            self._fixed = None
        self.placement = None

    def backward(self, batch: Any, *, is_last: bool) -> LossAndNumbers:
        """This rank's share of one batch; gradients are added up behind the last one."""
        model, placement = self._ready(), self.placement
        share = cut_batch(batch, self._part, self._num_parts)
        with own_random(self.settings.seed, self.run.taken, self._part):
            if placement is not None and placement.pipeline is not None:
                result = self._pipeline_step(placement.pipeline, share)
            else:
                waits = isinstance(model, DistributedDataParallel) and not is_last
                with model.no_sync() if waits else nullcontext():  # type: ignore[operator]
                    result = self._backward_once(model, share)
        if self._scales is not None:
            self._scales.agree()
        if is_last and self._exchange is not None:
            self._exchange.reduce(self.run.taken)
        if is_last and placement is not None:
            sizes = self.session.sizes
            placement.collect_gradients()
            if placement.pipeline is not None and sizes.data > 1 and sizes.shard == 1:
                held = (shard.trained for shard in placement.shards)
                average(held, self.session.group("data"), self.settings.wire)
            self._add_up_experts(placement)
        return result

    def _add_up_experts(self, placement: RankPlacement) -> None:
        """Experts saw the tokens of all expert ranks, whose losses are means of their own."""
        held = [shard.trained for shard in placement.shards if shard.over_expert]
        sizes = self.session.sizes
        for param in held:
            if param.grad is not None:
                param.grad /= sizes.expert
        if held and sizes.data > 1:
            average(held, self.session.group("data"), self.settings.wire)

    def _ready(self) -> nn.Module:
        if self._model is None:
            raise InputError("grid: arrange() comes before the first step.")
        return self._model

    def _pipeline_step(self, pipeline: LayerPipeline, share: Any) -> LossAndNumbers:
        """All microbatches of one batch; gradients of the batches before are added."""
        count = self.run.settings.accumulate
        before = {param: param.grad for param in pipeline.parameters()}
        inputs, keywords = inputs_of(self.run.objective, share)
        loss = pipeline.step(*inputs, target=share, **keywords)
        for param, grad in before.items():
            if param.grad is not None:
                param.grad /= count
                if grad is not None:
                    param.grad += grad
        return loss / count, {}

    def agree(self, loss: float, numbers: Mapping[str, float], signal: int) -> Agreement:
        """Means over the batch, the norm of all gradients, and whether anyone was asked to stop."""
        self.session.watch.step = self.run.step
        names, world, square = sorted(numbers), self.session.sizes.num_ranks, 0.0
        for param in self.run.parameters:
            grad = self.run.gradient_of(param)
            if grad is not None and grad.numel():
                norm = float(torch.linalg.vector_norm(grad, dtype=torch.float64))
                # What several ranks have counts in parts.
                square += norm**2 / self._copies[param]
        mine = [
            loss / world,
            square,
            *(float(signal == number) for number in _SIGNALS),
            *(numbers[name] / world for name in names),
        ]
        total = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(total)
        found = total.tolist()
        asked = (int(n) for n, votes in zip(_SIGNALS, found[2:4], strict=True) if votes)
        self._stop = next(asked, 0)
        return Agreement(found[0], found[1] ** 0.5, dict(zip(names, found[4:], strict=True)))

    def asked_to_stop(self, signal: int) -> int:
        """What was agreed in this step: a signal that came later is for the next one."""
        return self._stop

    def changed(self) -> None:
        """Masks that moved must be the same everywhere."""
        check_masks(self.run.model, f"after step {self.run.step}")

    def not_finite(self) -> list[str]:
        """Parameters of the whole model, in the order of ranks."""
        if self.placement is not None:
            held = {shard.name: shard.trained for shard in self.placement.shards}
            shapes = self.placement.shapes
        else:
            held = {name: p for name, p in self.run.model.named_parameters() if p in self._copies}
            shapes = {name: param.shape for name, param in held.items()}
        return whole_not_finite(held, self._copies, shapes)

    def sparsity(self) -> float:
        """Of the whole model: a rank that holds a part of it says what was known before the cut."""
        return super().sparsity() if self._fixed is None else self._fixed.sparsity

    def state_bytes(self) -> int:
        """Of the whole model, whatever this rank holds of it."""
        if self._fixed is None or self.placement is None:
            return super().state_bytes()
        return whole_state_bytes(self._fixed, self.placement.shards, self.run.optimizer)

    def evaluated(self, measure: Callable[[nn.Module], Any]) -> Any:
        """Every rank runs the evaluation: a model may need all of them for one output."""
        model = self._ready()
        if isinstance(model, DistributedDataParallel):
            model = model.module
        return broadcast_json(measure(model), self.session.patient)

    def numbers(self, evaluate: Evaluate, model: nn.Module) -> Mapping[str, float]:
        """Of an evaluation that can be shared every rank measures some blocks."""
        if not isinstance(evaluate, SharedEvaluation):
            return evaluate(model)
        outputs, place = evaluate.part(model, self._part, self._num_parts), self.session.place
        # Ranks of one pipeline, or of shared heads, have found the same: one of them says it.
        is_first = place.pipeline == place.tensor == 0
        if self._num_parts < self.session.sizes.num_ranks and not is_first:
            outputs.zero_()
        dist.all_reduce(outputs, group=self.session.patient)
        return evaluate.conclude(outputs)

    def states(self) -> States | None:
        """Of the whole model, whatever the mesh."""
        if self.placement is None:
            return super().states() if self.is_lead else None
        whole = gather(self.session, self.placement, self.run, self.settings.room)
        return None if whole is None else whole.states_of(self.run, self.placement)

    def saved(self) -> None:
        """Nobody goes on before the leading rank has written: its disk may be slow, or full."""
        dist.barrier(self.session.patient)

    def traffic(self) -> dict[str, int]:
        """Bytes that this rank sends in a step, by purpose, once the model is laid out.

        Rows of tables are those of the first step: another number in each would fill the log.
        """
        if self.placement is None:
            return {}
        exchange = self._exchange
        apart = frozenset(() if exchange is None else exchange.tables)
        shards = self.placement.shards
        apart |= {shard.used for shard in shards if shard.over_data or shard.over_expert}
        found = self.placement.step_traffic(self.session.sizes, self.settings.wire, apart)
        if exchange is not None and exchange.first is not None:
            found["tables"] = exchange.first.sent_bytes
        tokens = sent_tokens(self.placement.modules[0])
        if tokens:
            found["tokens"] = tokens
        return found


def num_samples(batch: Any) -> int:
    """Samples of a batch: the first dimension of all its tensors, or its length."""
    if _cuts_itself(batch):
        return len(batch)
    sizes = {leaf.shape[0] for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)}
    if len(sizes) != 1:
        raise InputError(
            "mesh: a batch must be tensors with samples along their first dimension; found sizes"
            f" {sorted(sizes)}."
        )
    return int(sizes.pop())


def cut_batch(batch: Any, part: int, count: int) -> Any:
    """Part number `part` of `count` equal ones."""
    total = num_samples(batch)
    if total % count:
        raise InputError(
            f"batch: {total} samples cannot be shared by {count} data and shard ranks. Use a batch"
            f" that {count} divides."
        )
    if _cuts_itself(batch):
        return batch.part(part, count)
    return pieces(batch, count)[part]


def _cuts_itself(batch: Any) -> bool:
    return isinstance(batch, Divisible)


@contextmanager
def own_random(seed: int, number: int, part: int) -> Iterator[None]:
    """Draws within differ from rank to rank; afterwards generators are equal again."""
    before = torch.get_rng_state()
    torch.manual_seed(generator_of(seed, number, part).initial_seed())
    try:
        yield
    finally:
        torch.set_rng_state(before)


class _Called(Exception):
    """What a model was called with: arguments and keywords."""


class _NotesArguments(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise _Called(args, kwargs)


def inputs_of(objective: Objective, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the objective calls the model with."""
    try:
        objective(_NotesArguments(), batch)
    except _Called as seen:
        args, keywords = seen.args
        return args, keywords
    raise InputError("mesh.pipeline: the loss does not call the model, so nothing can be cut.")


class PipelinedModel(nn.Module):
    """What evaluations call: all ranks of the pipeline together, the output on each of them."""

    def __init__(self, pipeline: LayerPipeline) -> None:
        super().__init__()
        self._pipeline = pipeline

    def train(self, mode: bool = True) -> "PipelinedModel":
        """Set the mode of the stages."""
        super().train(mode)
        self._pipeline.train(mode)
        return self

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The model's output."""
        return self._pipeline.predict(*args, **kwargs)
