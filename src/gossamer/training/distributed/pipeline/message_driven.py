# SPDX-License-Identifier: Apache-2.0
"""What a stage runs next when messages decide (AxoNN, arXiv 2110.13005): a pure state machine.

A message from the stage before is an activation and means forward, one from the stage after is a
gradient and means backward. Whichever came first is run first; no order is laid down beforehand, so
a late message holds up nothing that does not need it. Three rules:

- the first stage has its inputs from the start; the last one runs a backward right after its
  forward;
- a stage holds at most `in_flight` microbatches that went forward and not yet backward, which is
  `slack` more than 1F1B holds there: at the bound a forward waits, however early its message came;
- links keep the order of their messages. Forwards then run in the order of microbatches on every
  stage, and so do backwards; only how the two interleave depends on the network. Gradients are
  added up in that order: the result is the same to the bit whatever arrives when.

No deadlock: the oldest microbatch in flight is the next one to run wherever it is, and it is never
held back by the bound, because older ones would have to be in flight there.

Nothing here knows tensors, processes or clocks: `schedules.py` drives it on a network,
`fake_network.py` in virtual time.
"""

from collections import Counter, deque
from typing import Literal, NamedTuple

from gossamer.errors import DistributedError, InputError

Direction = Literal["forward", "backward"]


class Work(NamedTuple):
    """A microbatch to be run in one direction; the same words name the message that asks for it."""

    direction: Direction
    microbatch: int


# Without slack the pipeline is as stiff as 1F1B, whatever the order; benchmarks/pipeline.py has the
# figures. Every microbatch of slack costs the activations of one.
DEFAULT_SLACK = 1


class MessageDriven:
    """The decisions of one stage in one step.

    Args:
        stage: its number.
        num_stages: stages of the pipeline.
        num_microbatches: of the step.
        slack: microbatches that may be held beyond the bound of 1F1B.
    """

    def __init__(
        self, stage: int, num_stages: int, num_microbatches: int, slack: int = DEFAULT_SLACK
    ) -> None:
        if num_microbatches < 1:
            raise InputError(f"pipeline: at least 1 microbatch is needed; got {num_microbatches}.")
        if slack < 0:
            raise InputError(f"pipeline: slack must be at least 0; got {slack}.")
        self._name = f"stage {stage} of {num_stages}"
        self._is_last = stage == num_stages - 1
        self._num_microbatches = num_microbatches
        self.in_flight = min(num_microbatches, num_stages - stage + slack)
        self._arrived: deque[Work] = deque()
        self._expected, self._done = Counter[Direction](), Counter[Direction]()
        if stage == 0:
            for microbatch in range(num_microbatches):
                self.arrive(Work("forward", microbatch))

    @property
    def held(self) -> int:
        """Microbatches that went forward and not yet backward."""
        return self._done["forward"] - self._done["backward"]

    @property
    def finished(self) -> bool:
        """Whether every microbatch went both ways."""
        return self._done["backward"] == self._num_microbatches

    def arrive(self, work: Work) -> None:
        """Note a message."""
        expected = self._expected[work.direction]
        if work.microbatch != expected or expected >= self._num_microbatches:
            raise DistributedError(
                f"pipeline: {self._name} got the {work.direction} message of microbatch"
                f" {work.microbatch} where that of {expected} was due; links must keep the order of"
                " their messages."
            )
        self._expected[work.direction] += 1
        self._arrived.append(work)

    def start(self) -> Work | None:
        """What to run now, or None if a message has to come first; it counts as run from here."""
        at_bound = self.held >= self.in_flight
        for index, work in enumerate(self._arrived):
            if work.direction == "forward" and at_bound:
                continue
            del self._arrived[index]
            self._done[work.direction] += 1
            if work.direction == "forward" and self._is_last:
                self._expected["backward"] += 1
                self._arrived.appendleft(Work("backward", work.microbatch))
            return work
        return None
