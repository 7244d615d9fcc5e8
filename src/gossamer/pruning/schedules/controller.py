# SPDX-License-Identifier: Apache-2.0
"""The object a training loop holds: it counts steps, lets a schedule move masks, keeps events.

ctl = gossamer.attach(model, schedule, optimizer, total_steps=n)
...
loss = criterion(model(x), y) + ctl.penalty()   # only where penalty() is not None
loss.backward(); optimizer.step()
ctl.step()
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gossamer.errors import InputError
from gossamer.nn.surgery.optimizer_state import Part
from gossamer.pruning.schedules.base import Schedule, State
from gossamer.pruning.schedules.layers import release_layers, restore_mask
from gossamer.pruning.schedules.optimizer_entries import EntryParts
from gossamer.pruning.schedules.run import Event, Run

_VERSION = 1


class Controller:
    """Moves the masks of a model while it trains.

    Made by `gossamer.attach`. `state_dict` and `load_state_dict` belong beside those of the model
    and the optimizer, which are loaded first; a resumed run is then the uninterrupted one, bit for
    bit.

    Attributes:
        events: everything that happened, oldest first.
    """

    def __init__(self, run: Run, schedule: Schedule, settings: dict[str, Any]) -> None:
        self._run = run
        self._schedule = schedule
        self._settings = settings
        self._step = 0
        schedule.run = run
        run.agree_counts()
        self.events = schedule.start()
        optimizer = run.entries.optimizer
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_optimizer),
            optimizer.register_step_post_hook(self._after_optimizer),
        ]
        self._arm()

    @property
    def step_count(self) -> int:
        """Calls of `step` so far."""
        return self._step

    @property
    def is_settled(self) -> bool:
        """Whether masks never move again: time for `gossamer.compact(model, optimizer)`."""
        return self._schedule.is_settled(self._step)

    def begin_after(self, step: int) -> None:
        """So many steps were taken before it was attached; the schedule has nothing to do there."""
        self._step = step
        self._arm()

    def step(self) -> list[Event]:
        """Call it after every optimizer.step(); gives what happened."""
        if not self._hooks:
            raise InputError("ctl.step(): the controller is closed. Attach a new one.")
        if self._step >= self._run.total_steps:
            raise InputError(
                f"ctl.step(): all {self._run.total_steps} steps of the schedule are done. Give"
                " gossamer.attach the total_steps of the whole run."
            )
        settled = self.is_settled
        self._step += 1
        if settled:
            return []
        events = self._schedule.update(self._step)
        self.events.extend(events)
        self._arm()
        return events

    def penalty(self) -> torch.Tensor | None:
        """What the schedule adds to the loss of this step, if anything."""
        return None if self.is_settled else self._schedule.loss_term()

    def sparsity(self) -> float:
        """Fraction of zeros in the layers of the schedule."""
        return self._run.sparsity()

    def close(self) -> None:
        """Let go of model and optimizer; masks stay as they are. Closing twice is harmless."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        release_layers(self._run.layers)

    def state_dict(self) -> State:
        """Tensors, numbers, texts, lists and dicts; weights are in the model's own."""
        layers = self._run.current()
        return {
            "version": _VERSION,
            "settings": dict(self._settings),
            "step": self._step,
            "masks": {name: module.mask_bits.clone() for name, module in layers.items()},
            "patterns": {name: str(module.pattern) for name, module in layers.items()},
            "events": [event.to_dict() for event in self.events],
            "schedule": self._schedule.state_dict(),
            "entries": self._run.entries.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from `state`.

        Masks are set as they were. Load the states of model and optimizer before; where the model
        was compact when it was saved, call `gossamer.compact` after this and load them then.
        """
        self._check(state)
        step = int(state["step"])
        for layer in self._run.layers:
            restore_mask(layer, state["masks"][layer.name], state["patterns"][layer.name])
        self._run.agree_counts()
        self._schedule.load_state_dict(state["schedule"], step)
        self._run.entries.load_state_dict(state["entries"], self._run.current())
        self._step = step
        self.events = [Event(**event) for event in state["events"]]
        self._arm()

    def follow(self, parts: Mapping[nn.Parameter, Part]) -> None:
        """Masks are final and Parameters were cut: what the optimizer holds of each from now on.

        Args:
            parts: for every Parameter of which this process trains something, the one that took its
                place and the entries of the flat whole that it holds.
        """
        self._run.entries.follow(parts)

    def part_of(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """What is known of single entries of a cut Parameter, by their places in the whole one."""
        return self._run.entries.part_of(parameter)

    def whole_state(self, parts: EntryParts) -> State:
        """`state_dict` of a model that is cut.

        Args:
            parts: by Parameter of the whole model, what `part_of` gave in all processes.
        """
        entries = self._run.entries.whole_state(self._run.current(), parts)
        return {**self.state_dict(), "entries": entries}

    def _check(self, state: State) -> None:
        missing = set(self.state_dict()) - set(state)
        if missing or state["version"] != _VERSION:
            raise InputError(
                "load_state_dict: expected what Controller.state_dict() of this version gives;"
                f" missing: {', '.join(sorted(missing)) or 'nothing'}, version"
                f" {state.get('version')!r}, expected {_VERSION}."
            )
        changed = [
            f"{name}: {state['settings'].get(name)!r} then, {self._settings.get(name)!r} now"
            for name in sorted(self._settings.keys() | state["settings"].keys())
            if state["settings"].get(name) != self._settings.get(name)
        ]
        if changed:
            raise InputError(
                "load_state_dict: the schedule is another one than the state was saved with ("
                + "; ".join(changed)
                + "). Attach with the same schedule and total_steps."
            )
        names = {layer.name for layer in self._run.layers}
        if names != set(state["masks"]):
            raise InputError(
                "load_state_dict: the state is of other layers"
                f" ({', '.join(sorted(names ^ set(state['masks'])))}). Attach to the same model."
            )

    def _arm(self) -> None:
        if not self.is_settled:
            self._run.arm(self._schedule.wants_gradients(self._step + 1))

    def _before_optimizer(self, *_: Any) -> None:
        if not self.is_settled:
            self._schedule.before_optimizer()
        self._run.entries.before()

    def _after_optimizer(self, *_: Any) -> None:
        self._run.entries.after()
        if not self.is_settled:
            self._schedule.after_optimizer()
