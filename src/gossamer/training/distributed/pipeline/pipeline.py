# SPDX-License-Identifier: Apache-2.0
"""Inter-layer parallelism: a model over the ranks of a group, trained by a schedule.

    settings = PipelineSettings(num_microbatches=8, schedule="message-driven")
    pipeline = LayerPipeline(model, loss, (ids,), settings)
    optimizer = torch.optim.AdamW(pipeline.parameters())
    loss = pipeline.step(ids, target=labels)      # on every rank, with the same batch
    optimizer.step()

Every rank builds the whole model, takes its stages and lets go of the rest. Gradients are the mean
over microbatches, as of one process on the whole batch; those of tied weights are summed. What data
parallelism does with them is not decided here: `wrap` may put DDP or FSDP around a stage, or the
caller reduces `parameters()` after `step`.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gossamer.errors import InputError
from gossamer.nn.families import Chain
from gossamer.training.distributed.pipeline.cutting import cut
from gossamer.training.distributed.pipeline.schedules import (
    PipelineSettings,
    check_microbatches,
    make_schedule,
    rank_of_stage,
    stages_per_rank,
)
from gossamer.training.distributed.pipeline.stage import RecordedStage, WorkSpan
from gossamer.training.distributed.processes.messages import (
    broadcast_tensor,
    gather_json,
    global_rank,
    receive_tensor,
    send_tensor,
)


def batch_size(batch: Any) -> int:
    """Length of the first dimension, which all tensors of a batch share."""
    tensors = [leaf for leaf in tree_flatten(batch)[0] if isinstance(leaf, torch.Tensor)]
    sizes = {tensor.shape[0] if tensor.ndim else None for tensor in tensors}
    size = sizes.pop() if len(sizes) == 1 else None
    if size is None:
        found = ", ".join(str(list(tensor.shape)) for tensor in tensors) or "no tensors"
        raise InputError(
            "pipeline: all tensors of a batch must have the samples as their first dimension; got"
            f" {found}."
        )
    return size


def check_batch(batch: Any, num_microbatches: int) -> None:
    """Refuse a batch that does not make equal microbatches."""
    size = batch_size(batch)
    if size == 0 or size % num_microbatches:
        raise InputError(
            f"pipeline: a batch of {size} samples cannot be cut into {num_microbatches} equal"
            " microbatches. Change the batch size or the number of microbatches."
        )


def pieces(batch: Any, most: int) -> list[Any]:
    """The batch as up to `most` parts of about equal size; what is no tensor goes to all."""
    count = max(1, min(most, batch_size(batch)))
    leaves, tree = tree_flatten(batch)
    cut = [
        leaf.tensor_split(count) if isinstance(leaf, torch.Tensor) else (leaf,) * count
        for leaf in leaves
    ]
    return [tree_unflatten([parts[index] for parts in cut], tree) for index in range(count)]


Loss = Callable[[Any, Any], torch.Tensor]


class LayerPipeline:
    """The stages of this rank and how they run.

    Args:
        model: a chain of layers, the same on every rank; see `cutting.py`.
        loss: mean loss of a microbatch from the model's output and the target of the microbatch.
        example: positional arguments of the model for one microbatch, to weigh its layers with.
        settings: microbatches and schedule.
        keywords: keyword arguments to go with the example.
        group: ranks of the pipeline in order; None is all of them.
        chain: where the model keeps its layers; found by its class if not given.
        wrap: what to put around the module of each stage, such as DDP or fully_shard.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        example: tuple[Any, ...],
        settings: PipelineSettings,
        *,
        keywords: dict[str, Any] | None = None,
        group: dist.ProcessGroup | None = None,
        chain: Chain | None = None,
        wrap: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        self.group = group
        self.num_ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.settings = settings
        check_microbatches(settings.schedule, settings.num_microbatches, self.num_ranks)
        num_stages = self.num_ranks * stages_per_rank(settings.schedule, settings.stages)
        self.cut = cut(model, num_stages, example, keywords=keywords, chain=chain)
        self.modules: dict[int, nn.Module] = {
            index: self.cut.stage(model, index)
            for index in range(num_stages)
            if self.rank_of(index) == self.rank
        }
        self.device = next((p.device for p in self.parameters()), torch.device("cpu"))
        self._wrapped = self.modules
        if wrap is not None:
            self._wrapped = {index: wrap(module) for index, module in self.modules.items()}
        self._loss = loss
        self._targets: list[Any] = []
        self._shapes: Any = None
        self._stages: list[RecordedStage] = []
        self._schedule: Any = None

    def rank_of(self, stage: int) -> int:
        """Rank in the group that runs a stage."""
        return rank_of_stage(self.settings.schedule, stage, self.num_ranks)

    @property
    def spans(self) -> list[WorkSpan]:
        """What the stages of this rank did in the last step."""
        return [span for stage in self._stages for span in stage.spans]

    def timeline(self) -> list[WorkSpan]:
        """What all stages did in the last step, on every rank; hosts should agree on the time."""
        return [WorkSpan(*span) for spans in gather_json(self.spans, self.group) for span in spans]

    @property
    def sent_bytes(self) -> int:
        """Activations and their gradients that this rank sent in the last step."""
        return sum(stage.sent_bytes for stage in self._stages)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of this rank by their names in the whole model, each once."""
        names: dict[nn.Parameter, str] = {}
        for module in self.modules.values():
            for name, parameter in module.named_parameters():
                names.setdefault(parameter, name)
        return ((name, parameter) for parameter, name in names.items())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of this rank, each once."""
        return (parameter for _, parameter in self.named_parameters())

    def train(self, mode: bool = True) -> None:
        """Set the mode of all stages."""
        for module in self.modules.values():
            module.train(mode)

    def step(self, *inputs: Any, target: Any, **keywords: Any) -> float:
        """The mean loss of a batch; `.grad` of all parameters is replaced by its gradients.

        Every rank is given the whole batch; tensors are cut along their first dimension.

        Args:
            inputs: positional arguments of the model.
            target: tensors, in any containers, that the loss is given beside the output.
            keywords: keyword arguments of the model, which every stage is given.
        """
        count, last = self.settings.num_microbatches, self.cut.num_stages - 1
        check_batch((inputs, keywords, target), count)
        shapes = [
            x.shape if isinstance(x, torch.Tensor) else x for x in tree_leaves((inputs, keywords))
        ]
        if shapes != self._shapes:
            # Buffers have the shapes of one batch.
            self._shapes = shapes
            self._stages = [
                RecordedStage(module, index, self.cut.num_stages, self.device, group=self.group)
                for index, module in self._wrapped.items()
            ]
            self._schedule = make_schedule(self.settings, self._stages, self._loss_of)
        for parameter in self.parameters():
            parameter.grad = None
        self._targets = pieces(target, count)
        has_last = last in self.modules
        losses: list[torch.Tensor] = []
        self._schedule.step(
            *(inputs if 0 in self.modules else ()),
            # torch cuts tensors only, so targets are numbers of microbatches to it.
            target=torch.arange(count) if has_last else None,
            losses=losses if has_last else None,
            return_outputs=False,
            **keywords,
        )
        self._targets = []
        # Not by the schedule: it would divide a weight that two stages of a rank share twice.
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(count)
        self._sum_tied_gradients()
        mean = torch.stack(losses).detach().mean() if has_last else None
        return float(broadcast_tensor(mean, self.rank_of(last), self.group, self.device))

    def predict(self, *inputs: Any, **keywords: Any) -> torch.Tensor:
        """The model's output for a batch of any size, on every rank; no gradients."""
        outputs, last = [], self.cut.num_stages - 1
        # All ranks walk through (microbatch, stage) in one order, so that blocking messages cannot
        # wait for each other in a circle. Nothing is held for a backward, and every message says
        # its shape, so that the odd last batch of a data set is taken as well.
        with torch.no_grad():
            for given, others in pieces((inputs, keywords), self.settings.num_microbatches):
                for stage, module in sorted(self._wrapped.items()):
                    if stage and self.rank_of(stage - 1) != self.rank:
                        given = (receive_tensor(self._peer(stage - 1), self.group, self.device),)
                    given = (module(*given, **others),)
                    if stage < last and self.rank_of(stage + 1) != self.rank:
                        send_tensor(given[0], self._peer(stage + 1), self.group)
                outputs.append(given[0])
        merged = torch.cat(outputs) if last in self.modules else None
        return broadcast_tensor(merged, self.rank_of(last), self.group, self.device)

    def _peer(self, stage: int) -> int:
        """Who runs a stage, among all processes."""
        return global_rank(self.rank_of(stage), self.group)

    def _sum_tied_gradients(self) -> None:
        """Let every rank that holds a tied weight add up all its gradients in the same order.

        Stages of one rank share the Parameter, so autograd has added there. Ranks exchange what
        they have and add in the order of ranks: the same bits everywhere, so the copies never drift
        apart.
        """
        for weight in self.cut.tied:
            ranks = sorted({self.rank_of(stage) for stage in weight.stages})
            if self.rank not in ranks or len(ranks) == 1:
                continue
            held = zip(weight.stages, weight.names, strict=True)
            stage, name = next(pair for pair in held if pair[0] in self.modules)
            parameter = self.modules[stage].get_parameter(name)
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            # Shards of the data-parallel ranks are cut alike in all stages.
            grad = parameter.grad
            gradient = grad.to_local() if isinstance(grad, DTensor) else grad
            own = gradient.contiguous()
            gradients = {rank: torch.empty_like(own) for rank in ranks} | {self.rank: own}
            works: list[Any] = []
            for other in ranks:
                if other != self.rank:
                    peer = global_rank(other, self.group)
                    works.append(dist.irecv(gradients[other], peer, self.group))
                    works.append(dist.isend(own, peer, self.group))
            for work in works:
                work.wait()
            gradient.copy_(reduce(torch.add, [gradients[rank] for rank in ranks]))

    def _loss_of(self, output: Any, number: torch.Tensor) -> torch.Tensor:
        return self._loss(output, self._targets[int(number)])
