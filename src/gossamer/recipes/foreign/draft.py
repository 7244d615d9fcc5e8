# SPDX-License-Identifier: Apache-2.0
"""What the modifiers of a foreign recipe say, gathered: one handler per modifier.

A handler takes the fields it understands. What it leaves is a fault, so no setting is passed by;
fields about logging alone are known and have no meaning here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gossamer.recipes.faults import Fault, RecipeFaults
from gossamer.recipes.foreign.reading import Modifier
from gossamer.recipes.phrases import show

# They say what is printed.
_WITHOUT_EFFECT: Final = ("log_types", "constant_logging")
_EVERYTHING: Final = ("__ALL_PRUNABLE__", "__ALL__")
_MASKS: Final = {"unstructured": "unstructured", "block4": "block:1x4", "0:0": "unstructured"}


@dataclass(frozen=True)
class RateSegment:
    """The learning rate between two epochs; `end` of None lasts."""

    start: float
    end: float | None
    shape: str
    first: float
    last: float


@dataclass
class Draft:
    """What was found, before it becomes stages.

    Attributes:
        prunes: fields of `prune` stages, in order.
        schedules: (modifier, fields of a schedule with moments in epochs).
        brain_surgeon: oBERT over epochs, which has no schedule here: (modifier, `prune` fields).
        holds: whether masks that are there are held.
        start, end: epochs of the run.
        rates: of the learning rate.
        weight_decay: of the optimizer.
        teacher: hardness and temperature of a distillation.
        rounds: layers and tables that become integers.
        differences: what is not the same here, with its place.
    """

    prunes: list[dict[str, Any]] = field(default_factory=list)
    schedules: list[tuple[Modifier, dict[str, Any]]] = field(default_factory=list)
    brain_surgeon: list[tuple[Modifier, dict[str, Any]]] = field(default_factory=list)
    holds: bool = False
    start: float = 0.0
    end: float | None = None
    rates: list[RateSegment] = field(default_factory=list)
    weight_decay: float | None = None
    teacher: tuple[float, float] | None = None
    rounds: dict[str, str] = field(default_factory=dict)
    differences: list[Fault] = field(default_factory=list)

    def differs(self, modifier: Modifier, name: str, message: str) -> None:
        """Note what cannot be had in the same way."""
        self.differences.append(modifier.fault(name, message))


def gather(modifiers: list[Modifier]) -> Draft:
    """Everything that the modifiers say; RecipeFaults with all that is unknown."""
    draft, faults = Draft(), []
    for modifier in modifiers:
        handler = HANDLERS.get(modifier.name)
        if handler is None:
            known = ", ".join(HANDLERS)
            faults.append(modifier.fault("", f"has no equal here. Known modifiers: {known}."))
            continue
        try:
            for name in _WITHOUT_EFFECT:
                modifier.take(name)
            handler(modifier, draft)
        except RecipeFaults as error:
            faults += error.faults
            continue
        faults += [
            modifier.fault(name, f"this field is not known, with the value {show(value)}.")
            for name, value in modifier.settings.items()
        ]
    if faults:
        raise RecipeFaults(faults)
    return draft


def layer_rules(modifier: Modifier, given: Any, name: str) -> list[str] | None:
    """Rules for layers from rules for Parameters; None for all that can be pruned."""
    listed = given if isinstance(given, list) else [given]
    if given in (None, []) or any(rule in _EVERYTHING for rule in listed):
        return None
    return [_layer_rule(modifier, rule, name) for rule in listed]


def _layer_rule(modifier: Modifier, rule: Any, name: str) -> str:
    if not isinstance(rule, str) or not rule:
        raise RecipeFaults([modifier.fault(name, f"expected names, got {show(rule)}.")])
    if not rule.startswith("re:"):
        return rule.removesuffix(".weight")
    expression = rule.removeprefix("re:")
    # There, expressions match names of Parameters from their start: layer.weight.
    cut = re.sub(r"(\\?\.)?weight[*$]?$", "", expression)
    if "weight" in cut:
        message = f"{show(rule)} cannot be turned into a rule for layers."
        raise RecipeFaults([modifier.fault(name, message)])
    if cut == expression or cut.endswith((".*", ".+")):
        return f"re:{cut}"
    return f"re:{cut}$" if cut else "re:.*"


def _block_rules(modifier: Modifier, given: Any, name: str) -> list[str] | None:
    """Rules that name blocks, or classes, and mean the layers inside."""
    found = layer_rules(modifier, given, name)
    if found is None:
        return None
    return [
        f"{rule.removesuffix('$')}(\\..*)?$" if rule.startswith("re:") and not wide(rule) else rule
        for rule in found
    ]


def wide(rule: str) -> bool:
    """Whether an expression already matches whatever follows."""
    return rule.endswith((".*", ".+"))


def _pattern(modifier: Modifier, name: str, sparsity: float | None) -> tuple[str, float | None]:
    """The pattern of a mask type, and the sparsity unless the pattern fixes it."""
    given = modifier.take(name, "unstructured")
    if isinstance(given, list) and [type(item) for item in given] == [int, int]:
        return f"block:{given[0]}x{given[1]}", sparsity
    if given in _MASKS:
        return _MASKS[given], sparsity
    match = re.fullmatch(r"(\d+):(\d+)", given) if isinstance(given, str) else None
    if match is None:
        message = f"{show(given)} has no equal here: expected unstructured, block4, [1, 4] or 2:4."
        raise RecipeFaults([modifier.fault(name, message)])
    first, group = int(match[1]), int(match[2])
    if 2 * first == group:
        return given, None
    # Tools and versions differ in whether N is kept or pruned; the sparsity tells.
    kept = [n for n in (first, group - first) if sparsity and abs(1 - n / group - sparsity) < 1e-6]
    if not kept:
        message = f"{given}: kept or pruned? The sparsity {show(sparsity)} fits neither."
        raise RecipeFaults([modifier.fault(name, message)])
    return f"{kept[0]}:{group}", None


def _mask_fields(modifier: Modifier, sparsity: float | None, mask: str) -> dict[str, Any]:
    pattern, sparsity = _pattern(modifier, mask, sparsity)
    found: dict[str, Any] = {"pattern": pattern}
    return found if sparsity is None else {**found, "sparsity": sparsity}


def _oneshot(method: str) -> Callable[[Modifier, Draft], None]:
    """llm-compressor's modifiers that look at calibration data once."""

    def handle(modifier: Modifier, draft: Draft) -> None:
        step = {
            "method": method,
            **_mask_fields(modifier, modifier.number("sparsity", 0.5), "mask_structure"),
        }
        profile = modifier.take("sparsity_profile")
        if profile is not None and str(profile).lower() == "owl":
            step["budget"] = "owl"
            outliers, spread = modifier.number("owl_m", 5), modifier.number("owl_lmbda", 0.08)
            if (outliers, spread) != (5, 0.08):
                draft.differs(modifier, "owl_m", "outliers are those above 5 times, within 0.08.")
        elif profile is not None:
            raise RecipeFaults(
                [modifier.fault("sparsity_profile", f"{show(profile)} is not known.")]
            )
        if method == "sparsegpt":
            damping = modifier.take("dampening_frac", modifier.take("percdamp", 0.01))
            step |= {"damping": damping, "block": modifier.take("block_size", 128)}
            if modifier.take("quantize", False) is True:
                step["quantise"] = 8
        if modifier.take("sequential_update", True) is not True:
            message = "here a layer is solved for the inputs that the pruned layers before it give."
            draft.differs(modifier, "sequential_update", message)
        if modifier.take("preserve_sparsity_mask", False) is True:
            message = "masks that are there are not the start of new ones here."
            draft.differs(modifier, "preserve_sparsity_mask", message)
        targets = _block_rules(modifier, modifier.take("targets"), "targets")
        ignored = _block_rules(modifier, modifier.take("ignore"), "ignore")
        if targets is not None and targets != ["Linear"]:
            step["targets"] = targets
        if ignored is not None:
            step["ignore"] = ignored
        draft.prunes.append(step)

    return handle


def _budget(modifier: Modifier) -> str:
    return "global" if modifier.take("global_sparsity", False) is True else "uniform"


def _held(modifier: Modifier) -> None:
    if modifier.take("leave_enabled", True) is not True:
        message = "false would free the masks at the end; here they stay."
        raise RecipeFaults([modifier.fault("leave_enabled", message)])


def _gradual(modifier: Modifier, draft: Draft) -> None:
    final = modifier.take("final_sparsity")
    if isinstance(final, dict):
        message = "a sparsity per list of layers has no equal here; a schedule has one."
        raise RecipeFaults([modifier.fault("final_sparsity", message)])
    modifier.settings["final_sparsity"] = final
    shape = modifier.take("inter_func", "cubic")
    if shape != "cubic":
        draft.differs(modifier, "inter_func", f"{show(shape)}; here sparsity rises along a cubic.")
    if modifier.name == "GlobalMagnitudePruningModifier":
        modifier.settings.setdefault("global_sparsity", True)
    _held(modifier)
    schedule = {
        "kind": "gradual",
        **_mask_fields(modifier, modifier.number("final_sparsity"), "mask_type"),
        "budget": _budget(modifier),
        "initial_sparsity": modifier.number("init_sparsity", 0.05),
        "begin": modifier.number("start_epoch"),
        "end": modifier.number("end_epoch"),
        "every": modifier.number("update_frequency", 1.0),
        "targets": layer_rules(modifier, modifier.take("params"), "params"),
    }
    draft.schedules.append((modifier, schedule))


def _alternating(modifier: Modifier, draft: Draft) -> None:
    _held(modifier)
    schedule = {
        "kind": "acdc",
        **_mask_fields(modifier, modifier.number("compression_sparsity"), "mask_type"),
        "budget": _budget(modifier),
        "begin": modifier.number("start_epoch"),
        "end": modifier.number("end_epoch"),
        "phase": modifier.number("update_frequency"),
        "reset_momentum": modifier.take("momentum_buffer_reset", True),
        "targets": layer_rules(modifier, modifier.take("params"), "params"),
    }
    draft.schedules.append((modifier, schedule))


def _brain_surgeon(modifier: Modifier, draft: Draft) -> None:
    _held(modifier)
    start, end = modifier.number("start_epoch", 0.0), modifier.number("end_epoch", 0.0)
    for name in ("update_frequency", "inter_func", "init_sparsity", "num_recomputations"):
        modifier.take(name)
    for name in ("num_grads", "grad_sampler_kwargs", "fisher_block_size"):
        given = modifier.take(name)
        if given is not None:
            message = f"{show(given)}; here calibration and the method say how gradients are taken."
            draft.differs(modifier, name, message)
    damping = modifier.number("damp", 1e-7)
    step = {
        "method": "obert",
        **_mask_fields(modifier, modifier.number("final_sparsity"), "mask_type"),
        "budget": _budget(modifier),
    }
    targets = layer_rules(modifier, modifier.take("params"), "params")
    draft.differs(
        modifier,
        "damp",
        f"{damping:g} is added as it is there; here damping is a part of the mean, 0.1.",
    )
    if end > start:
        draft.differs(modifier, "end_epoch", "oBERT prunes once here, not again and again.")
    draft.brain_surgeon.append(
        (modifier, step if targets is None else {**step, "targets": targets})
    )


def _constant(modifier: Modifier, draft: Draft) -> None:
    for name in ("start_epoch", "end_epoch", "start", "end", "update_frequency"):
        modifier.take(name)
    named = [layer_rules(modifier, modifier.take(name), name) for name in ("params", "targets")]
    if any(rules is not None for rules in named) or modifier.take("ignore"):
        draft.differs(modifier, "params", "here the masks of all layers that have one are held.")
    draft.holds = True


def _range(modifier: Modifier, draft: Draft) -> None:
    draft.start = modifier.number("start_epoch", 0.0)
    draft.end = max(modifier.number("end_epoch"), draft.end or 0.0)


def _rate_function(modifier: Modifier, draft: Draft) -> None:
    shape = modifier.take("lr_func", "linear")
    modifier.take("update_frequency")
    if modifier.take("cycle_epochs") is not None or shape not in ("linear", "cosine"):
        draft.differs(modifier, "lr_func", f"{show(shape)}; here linear and cosine are known.")
    start, end = modifier.number("start_epoch", 0.0), modifier.number("end_epoch")
    first, last = modifier.number("init_lr"), modifier.number("final_lr")
    draft.rates.append(RateSegment(start, end, str(shape), first, last))


def _rate(modifier: Modifier, draft: Draft) -> None:
    start, rate = modifier.number("start_epoch", 0.0), modifier.number("learning_rate")
    modifier.take("end_epoch")
    draft.rates.append(RateSegment(start, None, "constant", rate, rate))


def _rate_class(modifier: Modifier, draft: Draft) -> None:
    name = modifier.take("lr_class")
    for extra in ("lr_kwargs", "end_epoch", "update_frequency"):
        modifier.take(extra)
    draft.differs(modifier, "lr_class", f"{show(name)}; here linear and cosine are known.")
    start, rate = modifier.number("start_epoch", 0.0), modifier.number("init_lr")
    draft.rates.append(RateSegment(start, None, "constant", rate, rate))


def _weight_decay(modifier: Modifier, draft: Draft) -> None:
    start, decay = modifier.number("start_epoch", 0.0), modifier.number("weight_decay")
    modifier.take("end_epoch")
    if start > draft.start:
        draft.differs(modifier, "start_epoch", "the weight decay stays the same over a run here.")
    else:
        draft.weight_decay = decay


def _distillation(modifier: Modifier, draft: Draft) -> None:
    for name in ("distill_output_keys", "end_epoch", "update_frequency"):
        modifier.take(name)
    _from_the_start(modifier, draft, "the teacher takes part")
    draft.teacher = modifier.number("hardness", 0.5), modifier.number("temperature", 2.0)


def _from_the_start(modifier: Modifier, draft: Draft, what: str) -> None:
    if modifier.number("start_epoch", 0.0) > draft.start:
        draft.differs(modifier, "start_epoch", f"here {what} from the first step on.")


def _quantisation(modifier: Modifier, draft: Draft) -> None:
    scheme = modifier.take("scheme", "W8A8")
    bits = {"W8A8": "int8", "INT8": "int8", "W8A16": "int8", "W4A16": "int4"}.get(str(scheme))
    if bits is None:
        raise RecipeFaults([modifier.fault("scheme", f"{show(scheme)} has no equal here.")])
    draft.rounds["layers"] = bits
    if modifier.take("quantize_embeddings", False) in (1, True):
        draft.rounds["embeddings"] = "int8"
    for name in ("end_epoch", "disable_quantization_observer_epoch"):
        modifier.take(name)
    _from_the_start(modifier, draft, "weights are rounded")
    for name in ("post_oneshot_calibration", "quantize_linear_activations"):
        modifier.take(name)
    if modifier.take("freeze_bn_stats_epoch") is not None:
        message = "here batch-norm statistics move as long as a model trains."
        draft.differs(modifier, "freeze_bn_stats_epoch", message)
    left = [
        n
        for n in ("submodules", "exclude_module_types", "ignore", "scheme_overrides", "targets")
        if modifier.take(n)
    ]
    for name in left:
        draft.differs(modifier, name, "which layers become integers is the rule of `round` here.")


HANDLERS: Final[Mapping[str, Callable[[Modifier, Draft], None]]] = {
    "SparseGPTModifier": _oneshot("sparsegpt"),
    "WandaPruningModifier": _oneshot("wanda"),
    "GMPruningModifier": _gradual,
    "LegacyGMPruningModifier": _gradual,
    "MagnitudePruningModifier": _gradual,
    "GlobalMagnitudePruningModifier": _gradual,
    "ACDCPruningModifier": _alternating,
    "OBSPruningModifier": _brain_surgeon,
    "ConstantPruningModifier": _constant,
    "EpochRangeModifier": _range,
    "LearningRateFunctionModifier": _rate_function,
    "LearningRateModifier": _rate_class,
    "SetLearningRateModifier": _rate,
    "SetWeightDecayModifier": _weight_decay,
    "DistillationModifier": _distillation,
    "QuantizationModifier": _quantisation,
}
