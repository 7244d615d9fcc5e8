# SPDX-License-Identifier: Apache-2.0
"""Dense rivals that were trained on the pairs that the search may learn from, and with its care.

The search trains a mask for 100 steps, then 300 more, with half of the loss from the scores and
half from a teacher, at the rate that is best on the part of the data it chooses by. Here a dense
model gets the same: steps, data, and choices on the same part. A dense model has nothing to get
back, so a loss of scores alone is among the choices, and rates are lower.
"""

import copy
import json
from dataclasses import dataclass

import torch

import gossamer
from gossamer.recipes import make_recipe
from gossamer.runs import execute
from gossamer.runs.stages import StageInput
from support.options import progress

# Of the first two rungs of a search.
STEPS = (100, 300)
# (part of the scores in the loss, rate)
TRIES = ((1.0, 1e-4), (0.5, 1e-4), (1.0, 2e-4))
_CHECKS = 4


@dataclass(frozen=True)
class Trainer:
    """Trains models and keeps what came out.

    Attributes:
        work: the search's data, loss and measure to choose by.
        folder: of trained models; what is there is not trained again.
    """

    work: object
    folder: object

    def best(self, name, model, teacher=None, tries=TRIES):
        """(the best trained model, what was tried): all tries for few steps, the best for more.

        Args:
            name: of its files.
            model: dense, left as it is.
            teacher: of the part of the loss that is not the scores; None: the model as it is.
            tries: see TRIES.
        """
        teacher = teacher or model
        tried = [self._one(name, model, teacher, 0, *each) for each in tries]
        first = max(tried, key=lambda each: each["quality"])
        start = self._load(first)
        tried.append(self._one(name, start, teacher, 1, first["scores"], first["rate"]))
        taken = max(tried, key=lambda each: each["quality"])
        taken["taken"] = True
        return self._load(taken), tried

    def _load(self, found):
        return gossamer.load(self.folder / found["name"]).eval()

    def _one(self, name, model, teacher, rung, scores, rate):
        """One training, or what is known of it."""
        name = f"{name}-{STEPS[rung]}-s{scores:g}-r{rate:g}"
        record = self.folder / f"{name}.json"
        if not record.exists():
            made = copy.deepcopy(model)
            changed = {"hardness": scores, "rate": rate, "steps": STEPS[rung], "checks": _CHECKS}
            stage = {"recover": {**self.work.aim, **changed}}
            recipe = make_recipe({"gossamer": 1, "stages": [stage]}, name)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                given = StageInput(
                    loss=self.work.loss,
                    teacher=copy.deepcopy(teacher),
                    samples=self.work.samples(),
                    say=lambda text: progress(f"{name}: {text}"),
                )
                execute(recipe, made, self.work.batches(), given=given)
            gossamer.save(made, self.folder / name)
            with torch.inference_mode():
                quality = self.work.choosing.measure(made.eval())
            steps = sum(STEPS[: rung + 1])
            found = {"name": name, "scores": scores, "rate": rate, "steps": steps}
            record.write_text(json.dumps({**found, "quality": quality}))
            progress(f"{name}: {quality:.2f} on the part that chooses")
        return json.loads(record.read_text())
