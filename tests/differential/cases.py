"""One case: a random model goes through every step, and each form is compared with float64 dense.

    draw -> sparsify -> compact -> save -> load -> compile (-> export)

A step may refuse with a GossamerError: that is an answer. Anything else that is not the oracle's
result is a fault: another number, or an error that is not ours.
"""

import contextlib
import copy
import gc
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from architectures import Drawn, draw_model
from oddities import ODDITIES, Oddity
from torch import nn

import gossamer
from gossamer.errors import GossamerError
from gossamer.ops import kernel_list

PATTERNS = ("unstructured",) * 5 + ("2:4", "1:4", "4:8", "block:4x4", "block:16x1", "nmg:1:4:4")
MODES = ("jit", "kernel", "resident")
# How far inputs and weights may be off, relative to themselves, before a result counts as another.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float64: 1e-14}
# Lossy kernels run where they are asked for. They may lose what noise of this size, relative to the
# largest weight and the largest input, does to the result.
LOSSY = {"fp32": 0.0, "bf16": 0.01, "int8": 0.02}


@dataclass
class Outcome:
    """What became of one case."""

    seed: int
    what: str
    faults: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"seed {self.seed} ({self.what}): " + "; ".join(self.faults)


def run_case(seed: int, *, export: bool = False) -> Outcome:
    """Draw the case of this seed and take it through all steps."""
    draw = random.Random(seed)  # noqa: S311  (a case is its seed)
    torch.manual_seed(seed)
    drawn = draw_model(draw)
    oddity = draw.choice(ODDITIES) if draw.random() < 0.6 else None
    outcome = Outcome(seed, drawn.name)
    if oddity is not None:
        outcome.what += f", {oddity.__name__}"
        with torch.no_grad():  # torch copies no weight that is computed with a graph
            oddity(draw, drawn)
    try:
        _result(drawn.model, drawn.inputs)
    except (RuntimeError, ValueError):
        outcome.steps["the model itself does not run"] += 1
    else:
        _Case(draw, drawn, oddity, outcome, export).run()
    return outcome


class _Case:
    def __init__(
        self,
        draw: random.Random,
        drawn: Drawn,
        oddity: Oddity | None,
        outcome: Outcome,
        export: bool,
    ) -> None:
        self.draw, self.drawn, self.oddity, self.outcome = draw, drawn, oddity, outcome
        self.export = export
        self.original = copy.deepcopy(drawn.model)
        self.pattern = draw.choice(PATTERNS)
        fixed = {"2:4": None, "1:4": None, "4:8": None, "nmg:1:4:4": None}
        self.sparsity = fixed.get(self.pattern, draw.choice((0.0, 0.3, 0.5, 0.8, 0.9, 0.99)))
        outcome.what += f", {self.pattern} {self.sparsity}"

    def run(self) -> None:
        """Every step; a step that refuses leaves the model to the next one."""
        model = self.drawn.model
        if not self.sparsified(model):
            return
        try:
            self.make_oracle(model)
        except RuntimeError:  # what torch cannot turn into float64, such as stale computed weights
            self.outcome.steps["no oracle"] += 1
            return
        self.compare("masked", model)
        self.compare_gradients("masked", model)
        if self.draw.random() < 0.8:
            mode = self.draw.choice(MODES)
            with self.step(f"compact {mode}"):
                gossamer.compact(model, mode=mode)
            self.compare(f"compact {mode}", model)
            self.compare_gradients(f"compact {mode}", model)
        with self.step("save and load"):
            model = self.saved_and_loaded(model)
            self.compare("loaded", model)
        self.compiled(model)

    def sparsified(self, model: nn.Module) -> bool:
        """Prune as drawn; where that is refused, unstructured and around the odd layer."""
        tries = (
            {"pattern": self.pattern, "sparsity": self.sparsity},
            {"sparsity": 0.5},
            {"sparsity": 0.5, "ignore": self.drawn.touched},
        )
        for options in tries:
            before = len(self.outcome.refusals)
            with self.step("sparsify"):
                gossamer.sparsify(model, **options)
            if self.outcome.faults:
                return False
            if len(self.outcome.refusals) == before:
                return True
        return False

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Count the step; take a refusal as an answer and any other error as a fault."""
        self.outcome.steps[name.split()[0]] += 1
        try:
            yield
        except GossamerError as refusal:
            self.outcome.refusals.append(f"{name}: {type(refusal).__name__}: {refusal}")
        except Exception as error:  # not ours: what this looks for
            self.outcome.faults.append(f"{name}: {type(error).__name__}: {error}"[:500])

    def make_oracle(self, model: nn.Module) -> None:
        """The original in float64 with the masks that were found, its result and its condition."""
        oracle = copy.deepcopy(self.original).double()
        dense = copy.deepcopy(self.original)
        self.masks = {
            name: module.mask().flatten()
            for name, module in model.named_modules()
            if callable(getattr(module, "mask", None))
        }
        with torch.no_grad():
            for name, mask in self.masks.items():
                for one in (oracle, dense):
                    weight = one.get_submodule(name).weight
                    weight.mul_(mask.view(weight.shape))
        self.dtype = next(self.original.parameters()).dtype
        self.want = _result(oracle, self.drawn.inputs)
        rounded = _result(dense, self.drawn.inputs)
        gradients = [self.gradients(one) for one in (oracle, dense)]
        self.oracle = copy.deepcopy(oracle)
        noise = ROUNDING[self.dtype]
        with torch.no_grad():
            for parameter in oracle.parameters():
                parameter.mul_(1 + noise * torch.randn_like(parameter))
        moved = _result(oracle, self.drawn.inputs)
        gradients.append(self.gradients(oracle))
        self.want_gradients = {
            name: (want, _slack(want, gradients[1][name], gradients[2][name], noise))
            for name, want in gradients[0].items()
        }
        self.slack = _slack(self.want, rounded, moved, noise)

    def compare(self, form: str, model: nn.Module, lossy: float = 0.0) -> None:
        """Run a form of the model and hold its result to the oracle's."""
        if self.outcome.faults:
            return
        with self.step(f"run {form}"):
            got = _result(model, self.drawn.inputs)
            if got.shape != self.want.shape:
                self.outcome.faults.append(f"{form}: shape {tuple(got.shape)}")
            elif not _worst(got, self.want) <= self.slack + lossy:
                off = _worst(got, self.want)
                self.outcome.faults.append(f"{form}: off by {off:.3g}, allowed {self.slack:.3g}")

    def gradients(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Gradients of a weighted sum of the output: of the input and of all kept weights."""
        inputs = _as_parameters_are(model, self.drawn.inputs)
        wanted: dict[str, torch.Tensor] = {}
        if inputs[0].is_floating_point():
            wanted["input"] = inputs[0].detach().requires_grad_()
            inputs = (wanted["input"], *inputs[1:])
        for name in self.masks:
            layer = model.get_submodule(name)
            # A compact layer's weight is the vector of its values.
            weight = layer._parameters.get("values", layer._parameters.get("weight"))
            if weight is not None and weight.requires_grad:
                wanted[name] = weight
        if not wanted:
            return {}
        with torch.enable_grad():
            y = model(*inputs).double()
            steps = torch.arange(y.numel(), dtype=torch.float64).view(y.shape)
            loss = (y * torch.cos(steps)).sum()
            if not loss.requires_grad:
                return {}
            found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        return {
            name: self.kept(name, gradient).double()
            for name, gradient in zip(wanted, found, strict=True)
            if gradient is not None
        }

    def kept(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Of a dense gradient the kept entries, in the order of compact values."""
        mask = self.masks.get(name)
        if mask is None or gradient.numel() != mask.numel():
            return gradient
        return gradient.flatten()[mask]

    def compare_gradients(self, form: str, model: nn.Module) -> None:
        """Hold the gradients of a form that trains to the oracle's."""
        if self.outcome.faults:
            return
        with self.step(f"gradients {form}"):
            got = self.gradients(model)
            for name, (want, slack) in self.want_gradients.items():
                if name not in got:
                    self.outcome.faults.append(f"{form}: no gradient of {name}")
                elif got[name].shape != want.shape or not _worst(got[name], want) <= slack:
                    self.outcome.faults.append(f"{form}: another gradient of {name}")

    def saved_and_loaded(self, model: nn.Module) -> nn.Module:
        """Through a file, into a new model or one with other weights in the same places."""
        with tempfile.TemporaryDirectory() as folder:
            gossamer.save(model, f"{folder}/model")
            if self.oddity is None and self.draw.random() < 0.5:
                with contextlib.suppress(GossamerError):  # an architecture that no file describes
                    return gossamer.load(f"{folder}/model")
            other = copy.deepcopy(self.original)
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.normal_()
            return gossamer.load(f"{folder}/model", model=other).eval()

    def compiled(self, model: nn.Module) -> None:
        """Compile for the inputs' own token counts, sometimes with a kernel of our choice."""
        x = self.drawn.inputs[0]
        precision = self.draw.choice(("fp32", "fp32", "fp32", "bf16", "int8"))
        kernel = self.draw.choice((None, None, *kernel_list("linear").names()))
        rows = max(x.numel() // max(x.shape[-1], 1), 1) if x.ndim else 1
        options = {
            "tokens": (1, rows),
            "precision": precision,
            "kernel": kernel,
            "example": x if self.draw.random() < 0.7 else None,
        }
        fast = None
        strict = gossamer.strict() if self.draw.random() < 0.2 else contextlib.nullcontext()
        with self.step("compile"), strict:
            fast = gossamer.compile(model, **options)
            str(gossamer.explain(fast))
        if fast is None:
            return
        lossy = self.lost_to_noise(LOSSY[precision])
        self.compare(f"compiled {precision} {kernel}", fast, lossy)
        self.compare("source of the compiled", model)
        if self.export:
            self.exported(fast, lossy)

    def lost_to_noise(self, size: float) -> float:
        """How far noise on weights and inputs, as rounding them would be, moves the result."""
        if not size:
            return 0.0
        noisy = copy.deepcopy(self.oracle)
        with torch.no_grad():
            for parameter in noisy.parameters():
                if parameter.numel():
                    parameter.add_(size * parameter.abs().max() * torch.randn_like(parameter))
            inputs = tuple(
                x + size * x.abs().max() * torch.randn_like(x)
                if x.is_floating_point() and x.numel()
                else x
                for x in self.drawn.inputs
            )
        return 10 * _worst(_result(noisy, inputs), self.want) + size * _largest(self.want)

    def exported(self, fast: nn.Module, lossy: float) -> None:
        """Through torch.export and torch.jit.trace, also after the compiled model is gone."""
        program = traced = None
        with self.step("export"), torch.no_grad():
            program = torch.export.export(fast, self.drawn.inputs).module()
        with self.step("trace"), torch.no_grad():
            traced = torch.jit.trace(fast, self.drawn.inputs, check_trace=False)
        for form, module in (("exported", program), ("traced", traced)):
            if module is not None:
                self.compare(form, module, lossy)
        del fast
        gc.collect()
        held = [
            gossamer.compile(nn.Sequential(copy.deepcopy(self.original)), tokens=1)
            for _ in range(2)
        ]
        for form, module in (("exported alone", program), ("traced alone", traced)):
            if module is not None:
                self.compare(form, module, lossy)
        del held


def _result(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The output in float64, of inputs in the dtype of the model's parameters."""
    with torch.no_grad():
        return model(*_as_parameters_are(model, inputs)).double()


def _as_parameters_are(
    model: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Inputs of a float64 oracle in float64, others as they are."""
    if next((p.dtype for p in model.parameters()), None) is not torch.float64:
        return inputs
    return tuple(x.double() if x.is_floating_point() else x for x in inputs)


def _slack(want: torch.Tensor, rounded: torch.Tensor, moved: torch.Tensor, noise: float) -> float:
    """How far a result may be from the oracle's: some of what rounding and noise do to it."""
    spread = _worst(rounded, want) + _worst(moved, want)
    return 30 * spread + 10 * noise * _largest(want)


def _largest(values: torch.Tensor) -> float:
    finite = values[torch.isfinite(values)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _worst(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest difference where the oracle is finite; infinite where only `got` is not."""
    usable = torch.isfinite(want)
    if not usable.any():
        return 0.0
    difference = (got - want)[usable].abs()
    return float("inf") if not torch.isfinite(difference).all() else float(difference.max())
