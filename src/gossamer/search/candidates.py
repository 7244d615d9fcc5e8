# SPDX-License-Identifier: Apache-2.0
"""What a search may try: recipes, made on the dense model or on an earlier candidate.

The weights of a candidate end on the int8 grid, so that its file holds integers; embeddings are
rounded first, so that everything after lives with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.patterns import Pattern, parse_pattern
from gossamer.recipes import Recipe, make_recipe

DENSE = "dense"
DENSE_INT8 = "dense-int8"
DENSE_BF16 = "dense-bf16"
# Names of dense models that were trained on the data begin with it.
DENSE_TRAINED = "dense-trained"
# Names of models with smaller tables and the MLPs as they are begin with it.
TABLES = "tables"
# How embeddings are held under pruned layers: as packed tables of so many bits, None: as trained.
PACKED = {"packed-int4": 4, "packed": None}
_FOLDED, _FLOAT_BITS = "folded", 32
# Parts of one size that neurons are dealt out to.
MOEFIED_EXPERTS = 16
_ROUNDED = {"round": {"layers": "int8"}}


@dataclass(frozen=True)
class Candidate:
    """A way to make a smaller model.

    Attributes:
        name: short, and the name of its folder.
        recipe: None leaves the model as it is.
        after: the candidate whose model the recipe starts from; None: the dense one.
        precisions: of the kernels it is measured with.
        steps: of training in it.
    """

    name: str
    recipe: Recipe | None
    after: str | None = None
    precisions: tuple[str, ...] = ("int8",)
    steps: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether no weight is taken out."""
        return has_all_weights(self.name)


@dataclass(frozen=True)
class Mask:
    """Zeros to try: a pattern and how many."""

    pattern: str
    sparsity: float

    @property
    def name(self) -> str:
        """`80`, `4of16` or `block1x4-80`: also a folder's name."""
        if self.pattern == "unstructured":
            return f"{self.sparsity * 100:.0f}"
        plain = self.pattern.replace(":", "of" if self.pattern[0].isdigit() else "")
        return plain if self.rule.fixed_density else f"{plain}-{self.sparsity * 100:.0f}"

    @property
    def rule(self) -> Pattern:
        """The pattern itself."""
        return parse_pattern(self.pattern)

    @property
    def asked(self) -> float | None:
        """The sparsity, unless the pattern fixes it."""
        return self.sparsity if self.rule.fixed_density is None else None


# One-shot masks; most of them are only forecast.
MASKS = (
    *(Mask("unstructured", sparsity) for sparsity in (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)),
    Mask("2:4", 0.5),
    Mask("4:16", 0.75),
    Mask("block:1x4", 0.7),
)


def has_all_weights(name: str) -> bool:
    """Whether a candidate of this name is a dense model."""
    if name.startswith(f"{TABLES}-"):
        return _FOLDED not in name
    return name in (DENSE, DENSE_INT8, DENSE_BF16) or is_trained_dense(name)


def is_trained_dense(name: str) -> bool:
    """Whether it is one that learned from the data."""
    return name.startswith(DENSE_TRAINED)


def dense() -> Candidate:
    """The model itself."""
    return Candidate(DENSE, None, precisions=("fp32",))


def dense_int8() -> Candidate:
    """All weights, in int8."""
    return _candidate(DENSE_INT8, [{"round": {"layers": "int8", "embeddings": "int8"}}])


def dense_bf16() -> Candidate:
    """All weights, rounded to bf16: half the file, computed with as float32."""
    stage = {"round": {"layers": "bf16", "embeddings": "bf16"}}
    return _candidate(DENSE_BF16, [stage], precisions=("fp32",))


def rounded_tables(bits: int | None) -> Candidate:
    """Tables as codes with a scale for each row, rounded after training; None: as trained."""
    stage = {"round": {"layers": None, "tables": {"bits": bits}}}
    name = f"{TABLES}-{'packed' if bits is None else f'int{bits}'}"
    return _candidate(name, [stage], precisions=("fp32",))


def folded_tables(bits: int, min_count: int = 1) -> Candidate:
    """One row for all ids that the data to fit to have less often; the others as codes."""
    stage = {"round": {"layers": None, "tables": {"bits": bits, "min_count": min_count}}}
    text = "" if bits == _FLOAT_BITS else f"-int{bits}"
    return _candidate(f"{TABLES}-{_FOLDED}-{min_count}{text}", [stage], precisions=("fp32",))


def trained_tables(bits: int, steps: int, rate: float, aim: Mapping[str, Any]) -> Candidate:
    """Tables rounded whenever they are looked up, trained so on the labels, then packed."""
    stages = [
        {"round": {"layers": None, "tables": {"bits": bits, "form": "trained"}}},
        _recovery(steps, rate, aim, int8=False),
        {"round": {"layers": None, "tables": {"bits": bits}}},
    ]
    name = f"{TABLES}-int{bits}-trained-{steps}-r{rate:g}"
    return _candidate(name, stages, precisions=("fp32",), steps=steps)


def slim(fraction: float, *, table: str) -> Candidate:
    """Heads and filters cut out until this fraction of the multiplications is left."""
    step = {"structured": {"budget": fraction, "multiple": 32}}
    return _candidate(f"slim-{fraction * 100:.0f}", [_tables(table), step, _ROUNDED])


def fewer_channels(keep: float, steps: int, rate: float, aim: Mapping[str, Any]) -> Candidate:
    """Whole channels of a convolutional network cut out, and what is left trained."""
    stages = [{"channels": {"keep": keep}}, _recovery(steps, rate, aim, int8=False), _ROUNDED]
    return _candidate(f"channels-{keep * 100:.0f}-{steps}", stages, steps=steps)


def moefied(shared: int, top_k: int, *, table: str) -> Candidate:
    """Feed-forward parts dealt out to 16 experts, of which a token has some; nothing is trained."""
    step = {"moefy": {"experts": MOEFIED_EXPERTS, "top_k": top_k, "shared": shared}}
    part = (shared + top_k) / MOEFIED_EXPERTS
    return _candidate(f"moefied-{part * 100:.0f}", [_tables(table), step, _ROUNDED])


def moefied_recovered(after: str, steps: int, rate: float, aim: Mapping[str, Any]) -> Candidate:
    """Training of it with the dense model as teacher."""
    stages = [_recovery(steps, rate, aim, int8=False), _ROUNDED]
    return _candidate(f"{after}-recovered-{steps}", stages, after=after, steps=steps)


def with_fewer_experts(
    keep: float, how: str, *, table: str, sparsity: float | None = None
) -> Candidate:
    """Experts dropped or merged; zeros in what is left, if asked for."""
    stages = [_tables(table), {"fewer_experts": {"keep": keep, "how": how}}]
    name = f"experts-{keep * 100:.0f}-{how}"
    if sparsity is not None:
        stages.append({"prune": {"method": "sparsegpt", "sparsity": sparsity}})
        name += f"-{sparsity * 100:.0f}"
    return _candidate(name, [*stages, _ROUNDED])


def one_shot(mask: Mask, *, table: str, ignore: Sequence[str] = ()) -> Candidate:
    """SparseGPT that aims at the dense model's outputs; layers in `ignore` stay dense."""
    step = {
        "method": "sparsegpt",
        "pattern": mask.pattern,
        "sparsity": mask.asked,
        "match": "dense",
        "ignore": list(ignore) or None,
    }
    return _candidate(f"oneshot-{mask.name}", [_tables(table), {"prune": step}, _ROUNDED])


def recovered(
    after: str, mask: Mask, steps: int, rate: float, aim: Mapping[str, Any], *, int8: bool
) -> Candidate:
    """Training with the dense model as teacher, from where `after` stands; masks are held.

    Args:
        after: the candidate that it starts from.
        mask: that it has.
        steps: of the optimizer.
        rate: of learning.
        aim: what is matched of the teacher, and what is frozen.
        int8: train as the int8 kernels compute.
    """
    name = f"recovered-{mask.name}-{steps}-r{rate:g}"
    stages = [_recovery(steps, rate, aim, int8=int8), _ROUNDED]
    return _candidate(name, stages, after=after, steps=steps)


def trained_dense(after: str | None, steps: int, rate: float, aim: Mapping[str, Any]) -> Candidate:
    """All weights in int8, trained on the labels that `recovered` learns from.

    What data gives is then not taken for what zeros leave. The teacher would be the model itself,
    so the labels alone count.

    Args:
        after: the one that it goes on from; None: the dense model.
        steps: of the optimizer.
        rate: of learning.
        aim: of `recovered`; what is frozen there is frozen here.
    """
    name = f"{DENSE_TRAINED}-{steps}-r{rate:g}"
    stages = [_tables("int8")] if after is None else []
    stages += [_recovery(steps, rate, {**aim, "hardness": 1.0}, int8=False), _ROUNDED]
    return _candidate(name, stages, after=after, steps=steps)


def fewer_tokens(keep: float, steps: int, aim: Mapping[str, Any], *, table: str) -> Candidate:
    """All weights, but an encoder that learns which tokens it can do without."""
    soft = steps // 2
    step = {key: aim[key] for key in ("embeddings", "logits", "freeze") if key in aim}
    step |= {"keep": keep, "soft_steps": soft, "hard_steps": steps - soft}
    stages = [_tables(table), {"tokens": step}, _ROUNDED]
    return _candidate(f"tokens-{keep * 100:.0f}", stages, precisions=("fp32",), steps=steps)


def _recovery(steps: int, rate: float, aim: Mapping[str, Any], *, int8: bool) -> dict[str, Any]:
    quantise = "int8" if int8 else None
    return {"recover": {**aim, "steps": steps, "rate": rate, "quantise": quantise, "checks": 4}}


def _tables(to: str) -> dict[str, Any]:
    if to in PACKED:
        return {"round": {"layers": None, "tables": {"bits": PACKED[to]}}}
    return {"round": {"layers": None, "embeddings": to}}


def _candidate(name: str, stages: list[dict[str, Any]], **more: Any) -> Candidate:
    recipe = make_recipe({"gossamer": 1, "stages": stages}, f"candidate {name}")
    return Candidate(name, recipe, **more)
