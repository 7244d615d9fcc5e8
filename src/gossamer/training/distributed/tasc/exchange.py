# SPDX-License-Identifier: Apache-2.0
"""TASC: only the blocks of a gradient that matter most are all-reduced, the same ones on all ranks.

    wrapped = DistributedDataParallel(model)
    tasc = attach(wrapped, density=0.05)
    optimizer = RowSGD(model.parameters(), tasc, lr=0.1, momentum=0.9)

A block is a row of a matrix, an output channel, or a run of kept values of a compact layer. It
scores ||a||^2 / n * (1 + Tr(H) / 2n), where a is all that this rank has not sent of it yet. Scores
of all ranks are added by the same all-reduce that carries the blocks, and decide what the next step
sends; so there are no indices, no second collective, and the union of all ranks' choices is the
choice. What is not sent stays in a local residual and goes along later; no block waits longer than
`max_age` steps.

Per step and rank a ring carries 2 (W-1)/W * density * elements, scores and biases included. The
residual is one more copy of the gradient.

Legend: R blocks of all parameters, N elements of a block, W ranks.
"""

import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from gossamer.errors import ArtifactError, DistributedError, InputError
from gossamer.training.distributed.tasc.blocks import (
    BlockCut,
    BlockedParameter,
    blocked_parameters,
    choose_blocks,
)
from gossamer.training.distributed.tasc.forecast import ExchangeForecast, measure_forecast
from gossamer.training.distributed.tasc.packet import MOST_BYTES, Packet, all_reduce_in_two_hops

VERSION = 1


class Tasc:
    """What TASC knows of a model: residuals of this rank; scores, ages and structure of all.

    Args:
        model: the module inside DDP.
        density: elements sent per step as a part of all, scores and biases included.
        max_age: most steps whose gradients may wait in a block.
        start: dense steps before the first structured one. At least 2: DDP makes its buckets
            anew after the first.
        min_gain: dense communication goes on where a measured forecast promises less; 0 does not
            measure.
        group: the ranks; None for all.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        density: float = 0.05,
        max_age: int = 100,
        start: int = 100,
        min_gain: float = 1.2,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self._entries = entries = blocked_parameters(model)
        self._by_param = {entry.param: entry for entry in entries}
        self._total = sum(param.numel() for param in self._by_param)
        self._num_blocks = sum(entry.cut.num_blocks for entry in entries)
        always = sum(entry.cut.tail for entry in entries) + self._num_blocks
        if not 0 < density <= 1:
            raise InputError(f"TASC: density must be in (0, 1], got {density}.")
        if max_age < 1:
            raise InputError(f"TASC: max_age must be at least 1, got {max_age}.")
        if start < 2:
            raise InputError(f"TASC: start must be at least 2 dense steps, got {start}.")
        if int(density * self._total) <= always < self._total:
            raise InputError(
                f"TASC: density {density} leaves nothing for blocks: biases, norms and scores alone"
                f" are {always / self._total:.4f} of the {self._total} elements. Ask for more."
            )
        self.budget = int(density * self._total) - always
        self.density, self.max_age, self.start, self.min_gain = density, max_age, start, min_gain
        self._group = group
        self._num_ranks = self._count_ranks()
        self._sizes_R = torch.zeros(self._num_blocks, dtype=torch.int64)
        for entry in entries:
            self._sizes_R[entry.span] = entry.cut.block_size
        self._ages_R = torch.zeros_like(self._sizes_R)
        self._scores_R = torch.zeros(self._num_blocks, dtype=torch.float64)
        self.set_curvature(self._scores_R)
        self.step = 0
        self.forecast: ExchangeForecast | None = None
        self.past_buckets = False  # whether structured steps take gradients at the parameters
        # Of the step that is under way, or was last:
        self._chosen_R: torch.Tensor | None = None  # None: dense
        self._rows: list[torch.Tensor] = []  # the same, by parameter
        self._waited_R = self._ages_R
        self._fresh_R = torch.zeros_like(self._scores_R)
        self._packets: list[Packet] = []
        self._failed = self._differs = False
        self._open = False  # buckets are on their way, or not accounted for
        self._expects_first_bucket = True

    @property
    def active(self) -> bool:
        """Whether steps after `start` are structured: the forecast has not spoken against it."""
        return self.forecast is None or self.forecast.gain >= self.min_gain

    def sent(self, param: nn.Parameter) -> tuple[BlockCut, torch.Tensor, torch.Tensor] | None:
        """How a parameter is cut, its blocks sent last, and how many steps each had waited.

        None if all of it was sent, as in every step. A block sent in every step has waited 1.
        """
        entry = self._by_param.get(param)
        if entry is None or self._chosen_R is None or not entry.cut.num_blocks:
            return None
        rows = self._rows[entry.index]
        return entry.cut, rows, self._waited_R[entry.span][rows]

    def residuals(self) -> dict[str, torch.Tensor]:
        """What this rank has not sent [R, N], by the name of the parameter."""
        self._settle()
        return {e.name: e.held_RN for e in self._entries if e.cut.num_blocks}

    def structure(self) -> torch.Tensor | None:
        """True for the blocks of all parameters that the last step sent; None if all were."""
        return None if self._chosen_R is None else self._chosen_R.clone()

    def blocks(self) -> Iterator[tuple[str, BlockCut, slice]]:
        """Names of parameters, how they are cut and where their blocks are in `structure()`."""
        for entry in self._entries:
            yield entry.name, entry.cut, entry.span

    def set_curvature(self, traces_R: torch.Tensor) -> None:
        """Take over traces of the Hessian, one per block, the same on all ranks."""
        self._curvature_R = traces_R.double().clamp(min=0).cpu()
        self._sharpness_R = 1 + self._curvature_R / (2 * self._sizes_R)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, by parameter. Residuals are this rank's own: save all ranks."""
        self._settle()
        known = self._known_of_blocks().items()
        return {
            "version": VERSION,
            "step": self.step,
            "forecast": None if self.forecast is None else asdict(self.forecast),
            "parameters": {
                entry.name: {
                    "residual": entry.held_RN.clone(),
                    **{key: all_R[entry.span].clone() for key, all_R in known},
                }
                for entry in self._entries
            },
        }

    def _known_of_blocks(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds of each block, beside its residual."""
        return {"ages": self._ages_R, "scores": self._scores_R, "curvature": self._curvature_R}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; ArtifactError if it is of another model."""
        held = state["parameters"]
        names = {entry.name for entry in self._entries}
        if state["version"] != VERSION or set(held) != names:
            odd = ", ".join(sorted(set(held) ^ names)[:3]) or "none"
            raise ArtifactError(
                f"TASC state of version {state['version']}: expected version {VERSION} and the"
                f" parameters of this model; on one side only: {odd}."
            )
        for entry in self._entries:
            expected, found = entry.held_RN.shape, held[entry.name]["residual"].shape
            if found != expected:
                raise ArtifactError(
                    f"TASC state, {entry.name}: expected blocks {list(expected)}, got"
                    f" {list(found)}. The model, or the masks of its layers, were others."
                )
        for entry in self._entries:
            entry.held_RN.copy_(held[entry.name]["residual"])
            for key, all_R in self._known_of_blocks().items():
                all_R[entry.span] = held[entry.name][key]
        self.set_curvature(self._curvature_R)
        self.step, forecast = state["step"], state["forecast"]
        self.forecast = None if forecast is None else ExchangeForecast(**forecast)
        self._open, self._expects_first_bucket, self._chosen_R = False, True, None
        self._packets, self._failed, self._differs = [], False, False

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Communicate a bucket of gradients; their mean, with zeros where nothing was sent."""
        if self._expects_first_bucket:
            self._begin_step()
        self._expects_first_bucket = bucket.is_last()
        # A sparse gradient has a bucket of its own, and is small as it is.
        if self._chosen_R is None or bucket.buffer().is_sparse:
            return self._reduce_dense(bucket)
        return self._reduce_chosen(bucket)

    @property
    def is_structured_next(self) -> bool:
        """Whether the next step is structured for sure; the one that measures may turn out so."""
        decided = self.forecast is not None or self.min_gain <= 0
        return decided and self.active and self.step >= self.start and self._num_blocks > 0

    def open_packets(self) -> list[Packet]:
        """Begin a structured step; a packet for the parameters of each dtype."""
        self._begin_step()
        self._packets = self._packets_of(self._entries)
        self._failed = True  # if nothing is exchanged after all
        return self._packets

    def exchange(self, packets: list[Packet]) -> bool:
        """All-reduce packets that are filled; whether there are means in them now."""
        for packet in packets:
            if not self.past_buckets or packet.padded.nbytes > MOST_BYTES:
                self._all_reduce(packet.buffer).wait()
            elif self._num_ranks > 1:
                all_reduce_in_two_hops(packet.padded, self._group)
        self._failed = False
        arrived = [self._arrived(packet) for packet in packets]
        return all(arrived)

    def _begin_step(self) -> None:
        self._settle()
        self.step += 1
        self._open = True
        self._ages_R += 1
        self._waited_R = self._ages_R.clone()
        self._chosen_R = None
        if self.step <= self.start or not self._num_blocks:
            return
        if self.forecast is None and self.min_gain > 0:
            like = self._entries[0].held_RN
            self.forecast = measure_forecast(self._rehearse, like, self._total, self._group)
            self._chosen_R = None
            if not self.active:
                warnings.warn(f"TASC: {self.forecast}. Gradients stay dense.", stacklevel=2)
        if self.active:
            self._choose()

    def _rehearse(self, gradient: torch.Tensor, bucket: torch.Tensor) -> float:
        """A structured step on zeros, which changes nothing; the seconds of its collective."""
        if not self.past_buckets:
            bucket.copy_(gradient)
        self._choose()
        packets = self._packets_of(self._entries)
        parts = [part for packet in packets for part in packet.parts]
        sizes = [part.entry.param.numel() for part in parts]
        pieces = list(zip(parts, torch.split(bucket, sizes), strict=True))
        for part, piece in pieces:
            part.fill(piece)
        start = time.perf_counter()
        self.exchange(packets)
        seconds = time.perf_counter() - start
        for part, piece in pieces:
            part.write(piece)
        bucket.zero_()
        if not self.past_buckets:
            gradient.copy_(bucket)
        return seconds

    def _choose(self) -> None:
        self._chosen_R = choose_blocks(
            self._scores_R * self._sharpness_R,
            self._sizes_R,
            self._ages_R,
            budget=self.budget,
            max_age=self.max_age,
        )
        in_spans = (self._chosen_R[entry.span] for entry in self._entries)
        self._rows = [chosen_R.nonzero().view(-1) for chosen_R in in_spans]

    def _packets_of(self, entries: Iterable[BlockedParameter]) -> list[Packet]:
        """A packet for the parameters of each dtype."""
        groups = defaultdict(list)
        for entry in entries:
            groups[entry.held_RN.dtype].append(entry)
        return [
            Packet([(entry, self._rows[entry.index]) for entry in group], self._num_ranks)
            for group in groups.values()
        ]

    def _arrived(self, packet: Packet) -> bool:
        """Look at a packet that came back: whether all are numbers, which are means then."""
        if not packet.read(self._num_ranks, self._fresh_R):
            self._failed = True
            return False
        self._differs |= not packet.agrees(self._num_ranks)
        return True

    def _reduce_dense(self, bucket: GradBucket) -> Future[torch.Tensor]:
        buffer = bucket.buffer()
        scored = self.step >= self.start and not buffer.is_sparse
        parts = list(self._pieces(bucket)) if scored else []
        buffer.div_(self._num_ranks)

        def finish(done: Future[list[torch.Tensor]]) -> torch.Tensor:
            # All ranks know the mean itself, so its scores need not travel.
            for entry, flat in parts:
                scores_R = entry.cut.in_blocks(flat).square().mean(1).double()
                self._failed |= not bool(torch.isfinite(scores_R.sum()))
                self._fresh_R[entry.span] = scores_R
            return done.value()[0]

        return self._all_reduce(buffer).then(finish)

    def _reduce_chosen(self, bucket: GradBucket) -> Future[torch.Tensor]:
        buffer, pieces = bucket.buffer(), dict(self._pieces(bucket))
        (packet,) = self._packets_of(pieces)
        self._packets.append(packet)
        for part in packet.parts:
            part.fill(pieces[part.entry])

        def finish(_: Future[list[torch.Tensor]]) -> torch.Tensor:
            if not self._arrived(packet):
                return buffer.fill_(float("nan"))
            buffer.zero_()
            for part in packet.parts:
                part.write(pieces[part.entry])
            return buffer

        return self._all_reduce(packet.buffer).then(finish)

    # Nothing else in this class knows a process group, so ranks can be simulated in one process.

    def _count_ranks(self) -> int:
        return dist.get_world_size(self._group)

    def _all_reduce(self, tensor: torch.Tensor) -> Future[list[torch.Tensor]]:
        """Add up over all ranks, in place."""
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        return cast("Future[list[torch.Tensor]]", work.get_future())

    def _pieces(self, bucket: GradBucket) -> Iterator[tuple[BlockedParameter, torch.Tensor]]:
        """The parameters of a bucket and their pieces of its buffer."""
        at, buffer = 0, bucket.buffer()
        for param in bucket.parameters():
            entry = self._by_param.get(param)
            if entry is None:
                raise InputError("TASC: DDP reduces a parameter that the model does not have.")
            yield entry, buffer[at : at + param.numel()]
            at += param.numel()

    def _settle(self) -> None:
        """Account for a step whose collectives have ended: it counts for all buckets or for none.

        A step with a number that is not finite anywhere counts for none: what was sent stays in the
        residuals, ages go on, and DDP gave NaN to all ranks, as it does without TASC.
        """
        if not self._open:
            return
        self._open = False
        packets, self._packets = self._packets, []
        failed, self._failed = self._failed, False
        if self._differs:
            raise DistributedError(
                f"TASC: step {self.step}: ranks sent different blocks. They must have the same"
                " model, settings and restored state, and use the same parameters in each step."
            )
        if failed:
            return
        for packet in packets:
            packet.clear()
        if self._chosen_R is None:
            self._ages_R.zero_()
        else:
            self._ages_R[self._chosen_R] = 0
        if self.step >= self.start:
            self._scores_R, self._fresh_R = self._fresh_R, self._scores_R
