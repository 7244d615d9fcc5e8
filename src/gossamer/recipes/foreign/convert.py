# SPDX-License-Identifier: Apache-2.0
"""From what a foreign recipe says to a recipe of our own: stages, and the text of a file."""

from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from gossamer.recipes.faults import Fault, RecipeFaults
from gossamer.recipes.foreign.draft import Draft, gather
from gossamer.recipes.foreign.reading import read_modifiers
from gossamer.recipes.loader import parse_recipe
from gossamer.recipes.schema import Recipe

_NEAREST = " Ask for the nearest recipe (--nearest) to leave it so."


@dataclass(frozen=True)
class Conversion:
    """A recipe made of another tool's.

    Attributes:
        text: the file, in YAML, with the differences as comments.
        recipe: what it says, checked.
        differences: what is not the same here; none unless the nearest was asked for.
    """

    text: str
    recipe: Recipe
    differences: tuple[str, ...]


def convert_recipe(
    raw: bytes,
    source: str,
    *,
    task: str | None = None,
    steps_per_epoch: int | None = None,
    nearest: bool = False,
) -> Conversion:
    """The recipe in the bytes of a file of SparseML or llm-compressor.

    Args:
        raw: the file, YAML or Markdown with YAML in front.
        source: its name in messages.
        task: of the `train` stage that schedules become, such as "images"; a foreign recipe leaves
            it to its training script.
        steps_per_epoch: optimizer steps of an epoch, where a `recover` stage counts steps.
        nearest: differences are told, not refused.

    Raises:
        RecipeFaults: with everything that has no equal here, by modifier, field and line.
    """
    draft = gather(read_modifiers(raw, source))
    stages = _stages(draft, source, task, steps_per_epoch)
    if draft.differences and not nearest:
        raise RecipeFaults(
            Fault(f.source, f.line, f.path, f.message + _NEAREST) for f in draft.differences
        )
    data = {"gossamer": 1, "description": f"converted from {source}"[:1000], "stages": stages}
    told = tuple(str(fault) for fault in draft.differences)
    comments = "".join(f"# differs: {line}\n" for line in told)
    text = comments + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return Conversion(text, parse_recipe(text.encode(), f"{source} (converted)"), told)


def _stages(
    draft: Draft, source: str, task: str | None, steps_per_epoch: int | None
) -> list[dict[str, Any]]:
    """Stages of `gossamer prune`, or the one stage of `gossamer train`."""
    once = [{"prune": step} for step in draft.prunes]
    once += [{"prune": step} for _, step in draft.brain_surgeon]
    if draft.schedules and once:
        modifier = draft.schedules[0][0]
        message = "a schedule and pruning at once cannot stand in one recipe here; take them apart."
        raise RecipeFaults([modifier.fault("", message)])
    if draft.schedules or not (once or draft.teacher):
        if draft.end is None and not draft.schedules:
            return _rounded(draft, source)
        return [{"train": _train(draft, source, task)}]
    if draft.teacher:
        once.append({"recover": _recover(draft, source, steps_per_epoch)})
    else:
        once += _after_pruning(draft, source, once)
    return once


def _after_pruning(draft: Draft, source: str, once: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The `round` stage, if there is one; training without a teacher is a difference."""
    if draft.end is not None:
        message = "EpochRangeModifier: training after pruning is left out; recover has a teacher."
        draft.differences.append(Fault(source, None, "", message))
    solved = [stage["prune"] for stage in once if "quantise" in stage["prune"]]
    for step in solved:
        step["quantise"] = 4 if draft.rounds.get("layers") == "int4" else 8
    left = {**draft.rounds, "layers": None} if solved else dict(draft.rounds)
    return [{"round": left}] if any(left.values()) else []


def _rounded(draft: Draft, source: str) -> list[dict[str, Any]]:
    if not draft.rounds:
        _refuse(source, "says neither how to prune nor how long to train.")
    return [{"round": dict(draft.rounds)}]


def _train(draft: Draft, source: str, task: str | None) -> dict[str, Any]:
    """A `train` stage; moments of the schedule become fractions of the run."""
    if task is None:
        _refuse(
            source,
            "trains, and leaves to its training script what on. Say it: --task images, text or"
            " labelled.",
        )
    if draft.end is None or draft.end <= draft.start:
        _refuse(source, "trains, but has no EpochRangeModifier that says how long.")
    found: dict[str, Any] = {"task": task, "epochs": draft.end - draft.start}
    _note_what_training_lacks(draft, source)
    optimizer, rate = _rate(draft, source)
    if draft.weight_decay is not None:
        optimizer["weight_decay"] = draft.weight_decay
    found |= {"optimizer": optimizer} if optimizer else {}
    found |= {"rate": rate} if rate else {}
    schedule = _schedule(draft)
    return {**found, "schedule": schedule} if schedule else found


def _note_what_training_lacks(draft: Draft, source: str) -> None:
    if draft.teacher:
        message = "DistillationModifier: a train stage has no teacher; recover after pruning has."
        draft.differences.append(Fault(source, None, "", message))
    if draft.rounds:
        message = (
            "QuantizationModifier: a train stage does not round; recover with quantise: int8 does."
        )
        draft.differences.append(Fault(source, None, "", message))


def _schedule(draft: Draft) -> dict[str, Any] | None:
    """The one schedule of a run, in fractions of it."""
    if not draft.schedules:
        return None
    first, fields = draft.schedules[0]
    alike: dict[str, Any] = {"targets": None}
    others = []
    for modifier, other in draft.schedules[1:]:
        if (other | alike) == (fields | alike):  # The same for more layers.
            both = fields["targets"], other["targets"]
            fields["targets"] = None if None in both else [*both[0], *both[1]]
        elif not _only_holds(other, fields):
            others.append(modifier)
    if others:
        raise RecipeFaults(
            modifier.fault(
                "",
                "a train stage has one schedule, and this is another than that of line"
                f" {first.line}: another sparsity, pattern or other epochs.",
            )
            for modifier in others
        )
    length = (draft.end or 0.0) - draft.start
    moments = {
        name: min(1.0, max(0.0, (fields[name] - draft.start) / length)) for name in ("begin", "end")
    }
    lengths = {name: fields[name] / length for name in ("every", "phase") if name in fields}
    found: dict[str, Any] = fields | moments | lengths
    if found["kind"] == "acdc":
        found["last_dense"] = max(found["begin"], found["end"] - found["phase"])
    return {name: value for name, value in found.items() if value is not None}


def _only_holds(other: dict[str, Any], fields: dict[str, Any]) -> bool:
    """Whether a second schedule only keeps the zeros of the first, which is so here anyway."""
    wanted = fields.get("sparsity"), fields["targets"]
    holds = other.get("initial_sparsity") == other.get("sparsity")
    return bool(holds and (other.get("sparsity"), other["targets"]) == wanted)


def _recover(draft: Draft, source: str, steps_per_epoch: int | None) -> dict[str, Any]:
    """Training with a teacher while masks are held."""
    if draft.end is None or steps_per_epoch is None:
        _refuse(source, "trains with a teacher for epochs; say --steps-per-epoch of your data.")
    hardness, temperature = draft.teacher or (1.0, 1.0)
    optimizer, rate = _rate(draft, source)
    found: dict[str, Any] = {
        "steps": max(1, round((draft.end - draft.start) * steps_per_epoch)),
        "logits": 1.0,
        "temperature": temperature,
        # There the share of the teacher, here that of the labels.
        "hardness": round(1.0 - hardness, 9),
    }
    if "lr" in optimizer:
        found |= {"rate": optimizer["lr"], "warmup": rate["warmup"], "decay": rate["shape"]}
    if draft.rounds.get("layers") == "int8":
        found["quantise"] = "int8"
    if "embeddings" in draft.rounds or draft.rounds.get("layers", "int8") != "int8":
        message = "QuantizationModifier: recovery rounds layers to int8 only."
        draft.differences.append(Fault(source, None, "", message))
    if draft.weight_decay:
        message = "SetWeightDecayModifier: recovery has none."
        draft.differences.append(Fault(source, None, "", message))
    return found


def _rate(draft: Draft, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The peak, and how the rate rises to it and falls."""
    segments = sorted(draft.rates, key=lambda segment: segment.start)
    if not segments:
        return {}, {}
    peak = max(max(segment.first, segment.last) for segment in segments)
    length = (draft.end or 0.0) - draft.start
    warmup, fall = 0.0, segments
    rises = segments[0].shape == "linear" and segments[0].last > segments[0].first
    if rises and len(segments) > 1 and length and segments[0].end is not None:
        warmup, fall = (segments[0].end - draft.start) / length, segments[1:]
    last = fall[-1]
    simple = len(fall) == 1 and last.first == peak and (not rises or segments[0].first == 0.0)
    reaches = last.end is None or abs(last.end - (draft.end or 0.0)) < 1e-9
    if not simple or not reaches:
        message = (
            "the learning rate: here it rises from 0, stays or falls once, to the end of the run;"
            f" the nearest is {last.shape} from {peak:g}."
        )
        draft.differences.append(Fault(source, None, "", message))
    shape = last.shape if last.shape in ("linear", "cosine") else "constant"
    rate: dict[str, Any] = {"shape": shape, "warmup": round(warmup, 9)}
    if shape != "constant" and last.last and peak:
        rate["floor"] = last.last / peak
    return {"lr": peak}, rate


def _refuse(source: str, message: str) -> NoReturn:
    raise RecipeFaults([Fault(source, None, "", message)])
