# SPDX-License-Identifier: Apache-2.0
"""Dense rivals that were trained on the pairs that the search may learn from, and with its care.

The search trains a mask for 100 steps, then 300 more, with half of the loss from the scores and
half from a teacher, at the rate that is best on the part of the data it chooses by. Here a dense
model gets the same: steps, loss, data, and the choice of rate and length on the same part.
"""

import copy
import json

import torch

import gossamer
from gossamer.recipes.execute import execute
from gossamer.recipes.loader import make_recipe
from gossamer.recipes.prune_stage import StageInput
from support.options import progress

# Of the first two rungs of a search.
STEPS = (100, 300)
# All weights are there already: rates are lower than those of pruned models.
RATES = (5e-4, 2.5e-4, 1e-4)
_CHECKS = 4


def trained(name, model, work, folder, teacher=None, rates=RATES):
    """(the best trained model, what was tried): steps of every rate, then more of the best.

    Args:
        name: of its files.
        model: dense, left as it is.
        work: the search's data, loss and measure to choose by.
        folder: what was trained is kept there, and not trained again.
        teacher: of half of the loss; None: the model itself before training.
        rates: of learning.
    """
    teacher = teacher or model
    first = [_one(f"{name}-{STEPS[0]}-r{rate:g}", model, rate, 0, work, folder, teacher)
             for rate in rates]  # fmt: skip
    best = max(first, key=lambda each: each["quality"])
    start = gossamer.load(folder / best["name"]).eval()
    more = _one(
        f"{name}-{STEPS[1]}-r{best['rate']:g}", start, best["rate"], 1, work, folder, teacher
    )
    tried = [*first, more]
    taken = max(tried, key=lambda each: each["quality"])
    taken["taken"] = True
    return gossamer.load(folder / taken["name"]).eval(), tried


def _one(name, model, rate, rung, work, folder, teacher):
    """One training, or what is known of it."""
    record = folder / f"{name}.json"
    if not record.exists():
        made = copy.deepcopy(model)
        step = {**work.aim, "steps": STEPS[rung], "rate": rate, "checks": _CHECKS}
        recipe = make_recipe({"gossamer": 1, "stages": [{"recover": step}]}, name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            given = StageInput(
                loss=work.loss,
                teacher=copy.deepcopy(teacher),
                samples=work.samples(),
                say=lambda text: progress(f"{name}: {text}"),
            )
            execute(recipe, made, work.batches(), given=given)
        gossamer.save(made, folder / name)
        with torch.inference_mode():
            quality = work.choosing.measure(made.eval())
        found = {"name": name, "rate": rate, "steps": sum(STEPS[: rung + 1]), "quality": quality}
        record.write_text(json.dumps(found))
        progress(f"{name}: {quality:.2f} on the part that chooses")
    return json.loads(record.read_text())
