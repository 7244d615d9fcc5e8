# SPDX-License-Identifier: Apache-2.0
"""The steps of a training loop on a grid of processes.

While masks move, every rank has the whole model and DDP joins all of them: a schedule then sees the
same weights and gradients everywhere and moves the same masks. Once they are final, the compact
model is laid out on the grid. What a step decides (skip, clip, stop) is decided on numbers that all
ranks have agreed on.
"""

import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gossamer.errors import InputError
from gossamer.training.distributed.pipeline.loss import (
    PipelinedModel,
    inputs_of,
    loss_of_output,
)
from gossamer.training.distributed.pipeline.pipeline import Pipeline
from gossamer.training.distributed.pipeline.schedules import PipelineSettings
from gossamer.training.distributed.placement.gathering import (
    gather,
    make_whole,
    whole_control_state,
    whole_model_state,
    whole_optimizer_state,
)
from gossamer.training.distributed.placement.gradients import Wire, average, replicated
from gossamer.training.distributed.placement.layout import Layout, lay_out
from gossamer.training.distributed.placement.rules import check_model
from gossamer.training.distributed.placement.shares import cut_batch, num_samples, own_random
from gossamer.training.distributed.placement.traffic import step_traffic
from gossamer.training.distributed.placement.whole_figures import (
    FixedFigures,
    whole_not_finite,
    whole_state_bytes,
)
from gossamer.training.distributed.processes.equal_on_all import check_masks
from gossamer.training.distributed.processes.messages import broadcast_json
from gossamer.training.distributed.processes.session import Session
from gossamer.training.loop.recompute import recomputing
from gossamer.training.loop.single_process import Agreement, backward_once
from gossamer.training.memory.held import measure

if TYPE_CHECKING:
    from gossamer.training.loop.loop import Loop

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class GridSettings:
    """How the grid works.

    Attributes:
        wire: how gradients travel between replicas: as they are, or rounded to bf16.
        microbatches: of a batch in a pipeline.
        schedule: of the pipeline.
        seed: of what differs between ranks, such as dropout.
    """

    wire: Wire = "full"
    microbatches: int = 1
    schedule: str = "1f1b"
    seed: int = 0


class Grid:
    """All processes of a session, as a `Loop` uses them.

    Args:
        session: they are there.
        settings: how they work together.
    """

    def __init__(self, session: Session, settings: GridSettings | None = None) -> None:
        self.session, self.settings = session, settings or GridSettings()
        self.layout: Layout | None = None
        self._fixed: FixedFigures | None = None
        self._model: nn.Module | None = None
        self._copies: dict[nn.Parameter, int] = {}
        self._part, self._num_parts = 0, 1
        self._stop = 0
        self._stack = ExitStack()

    @property
    def is_lead(self) -> bool:
        """Whether this process writes files."""
        return self.session.is_lead

    def arrange(self, loop: "Loop") -> None:
        """DDP over all ranks while masks move; the grid once they are final."""
        session, sizes = self.session, self.session.sizes
        check_masks(loop.model, f"after step {loop.step}", session.patient)
        place = session.place
        self._part, self._num_parts = place.data * sizes.shard + place.shard, sizes.num_parts
        check_model(
            sizes,
            loop.model,
            loop.optimizer,
            precision=loop.settings.precision,
            schedule=self.settings.schedule,
            microbatches=self.settings.microbatches,
        )
        if not loop.control.is_settled:
            self._arrange_replicas(loop)
            return
        self._fixed = FixedFigures.of(loop.model, loop.control.sparsity())
        make = (lambda model: self._pipeline(loop, model)) if sizes.pipeline > 1 else None
        self.layout = layout = lay_out(
            session, loop.model, loop.optimizer, make, follow=loop.control.follow
        )
        self._copies = {piece.trained: piece.copies for piece in layout.pieces}
        for module in layout.modules:
            self._stack.enter_context(recomputing(module, loop.settings.recompute))
        if layout.pipeline is not None:
            self._model = PipelinedModel(layout.pipeline)
            self._model.train(loop.settings.in_train_mode)
        elif sizes.shard == 1 and sizes.data > 1:
            self._model = replicated(layout.modules[0], session.group("data"), self.settings.wire)
        else:
            self._model = layout.modules[0]

    def _pipeline(self, loop: "Loop", model: nn.Module) -> Pipeline:
        """The stages of `model`, cut by what one microbatch costs."""
        count = self.settings.microbatches
        share = cut_batch(loop.batches[loop.taken], self._part, self._num_parts)
        args, keywords = inputs_of(loop.objective, cut_batch(share, 0, count))
        return Pipeline(
            model,
            lambda output, batch: loss_of_output(loop.objective, output, batch),
            args,
            PipelineSettings(num_microbatches=count, schedule=self.settings.schedule),
            keywords=keywords,
            group=self.session.group("pipeline"),
        )

    def _arrange_replicas(self, loop: "Loop") -> None:
        world = self.session.sizes.num_ranks
        batch = num_samples(loop.batches[loop.taken])
        if batch % world == 0:
            self._part, self._num_parts = self.session.rank, world
        # Otherwise ranks of one pipeline, or of shared heads, compute the same: the mean stays.
        self._copies = {p: world for g in loop.optimizer.param_groups for p in g["params"]}
        self._model = replicated(loop.model, dist.group.WORLD, self.settings.wire)

    def dissolve(self, loop: "Loop") -> None:
        """The model is whole on the leading rank, as if it had trained alone."""
        self._model = None
        self._stack.close()
        if self.layout is None:
            return
        gathered = gather(self.session, self.layout, loop)
        if gathered is not None:
            make_whole(loop.model, loop.optimizer, self.layout, gathered)
        self.layout = None
        if self.is_lead:
            # The others never have the whole model again.
            self._fixed = None

    def backward(
        self, loop: "Loop", batch: Any, *, is_last: bool
    ) -> tuple[float, dict[str, float]]:
        """This rank's share of one batch; gradients are added up behind the last one."""
        model, layout = self._ready(), self.layout
        share = cut_batch(batch, self._part, self._num_parts)
        with own_random(self.settings.seed, loop.taken, self._part):
            if layout is not None and layout.pipeline is not None:
                result = self._pipeline_step(loop, layout.pipeline, share)
            else:
                waits = isinstance(model, DistributedDataParallel) and not is_last
                with model.no_sync() if waits else nullcontext():  # type: ignore[operator]
                    result = backward_once(loop.objective, model, share, loop)
        if is_last and layout is not None:
            self._finish_gradients(layout)
        return result

    def _ready(self) -> nn.Module:
        if self._model is None:
            raise InputError("grid: arrange() comes before the first step.")
        return self._model

    def _pipeline_step(
        self, loop: "Loop", pipeline: Pipeline, share: Any
    ) -> tuple[float, dict[str, float]]:
        """All microbatches of one batch; gradients of the batches before are added."""
        count = loop.settings.accumulate
        before = {param: param.grad for param in pipeline.parameters()}
        inputs, keywords = inputs_of(loop.objective, share)
        loss = pipeline.step(*inputs, target=share, **keywords)
        for param, grad in before.items():
            if param.grad is not None:
                param.grad /= count
                if grad is not None:
                    param.grad += grad
        return loss / count, {}

    def _finish_gradients(self, layout: Layout) -> None:
        sizes = self.session.sizes
        layout.collect_gradients()
        if layout.pipeline is not None and sizes.data > 1 and sizes.shard == 1:
            held = (piece.trained for piece in layout.pieces)
            average(held, self.session.group("data"), self.settings.wire)

    def agree(
        self, loop: "Loop", loss: float, numbers: Mapping[str, float], signal: int
    ) -> Agreement:
        """Means over the batch, the norm of all gradients, and whether anyone was asked to stop."""
        self.session.watch.step = loop.step
        names = sorted(numbers)
        world = self.session.sizes.num_ranks
        mine = [
            loss / world,
            self._square(loop),
            *(float(signal == number) for number in _SIGNALS),
            *(numbers[name] / world for name in names),
        ]
        total = torch.tensor(mine, dtype=torch.float64)
        dist.all_reduce(total)
        found = total.tolist()
        asked = [n for n, votes in zip(_SIGNALS, found[2:4], strict=True) if votes]
        self._stop = int(asked[0]) if asked else 0
        return Agreement(found[0], found[1] ** 0.5, dict(zip(names, found[4:], strict=True)))

    def _square(self, loop: "Loop") -> float:
        """Of this rank's gradients; what several ranks have counts in parts."""
        total = 0.0
        for group in loop.optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None and param.grad.numel():
                    norm = float(torch.linalg.vector_norm(param.grad, dtype=torch.float64))
                    total += norm**2 / self._copies[param]
        return total

    def asked_to_stop(self, signal: int) -> int:
        """What was agreed in this step: a signal that came later is for the next one."""
        return self._stop

    def changed(self, loop: "Loop") -> None:
        """Masks that moved must be the same everywhere."""
        check_masks(loop.model, f"after step {loop.step}")

    def not_finite(self, loop: "Loop") -> list[str]:
        """Parameters of the whole model, in the order of ranks."""
        layout = self.layout
        if layout is not None:
            pieces = [(piece.name, piece.trained) for piece in layout.pieces]
            return whole_not_finite(pieces, self._copies, layout.shapes)
        held = {name: p for name, p in loop.model.named_parameters() if p in self._copies}
        shapes = {name: param.shape for name, param in held.items()}
        return whole_not_finite(held.items(), self._copies, shapes)

    def sparsity(self, loop: "Loop") -> float:
        """Of the whole model: a rank that holds a part of it says what was known before the cut."""
        return loop.control.sparsity() if self._fixed is None else self._fixed.sparsity

    def state_bytes(self, loop: "Loop") -> int:
        """Of the whole model, whatever this rank holds of it."""
        if self._fixed is None or self.layout is None:
            return measure(loop.model, loop.optimizer).total_bytes
        return whole_state_bytes(self._fixed, self.layout.pieces, loop.optimizer)

    def evaluated(self, loop: "Loop", measure: Callable[[nn.Module], Any]) -> Any:
        """Every rank runs the evaluation: a model may need all of them for one output."""
        model = self._ready()
        if isinstance(model, DistributedDataParallel):
            model = model.module
        found = measure(model)
        return broadcast_json(found, self.session.patient)

    def states(self, loop: "Loop") -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
        """Of the whole model, whatever the grid."""
        if self.layout is None:
            if not self.is_lead:
                return None
            state = loop.optimizer.state_dict()
            return dict(loop.model.state_dict()), state, loop.control.state_dict()
        gathered = gather(self.session, self.layout, loop)
        if gathered is None:
            return None
        return (
            whole_model_state(loop.model, gathered),
            whole_optimizer_state(loop.optimizer, self.layout, gathered),
            whole_control_state(loop, gathered),
        )

    def saved(self) -> None:
        """Nobody goes on before the leading rank has written: its disk may be slow, or full."""
        dist.barrier(self.session.patient)

    def traffic(self) -> dict[str, int]:
        """Bytes that this rank sends in a step, by purpose, once the model is laid out."""
        if self.layout is None:
            return {}
        return step_traffic(self.session.sizes, self.layout, self.settings.wire)
