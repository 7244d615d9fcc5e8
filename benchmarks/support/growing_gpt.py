# SPDX-License-Identifier: Apache-2.0
"""Byte-level GPTs that grow while they train: runs that share what they have in common.

Under a warm-up, stable, decay schedule two runs with the same beginning are one run until one of
them grows or decays. That trunk is trained once per rate and seed and kept in files; a run branches
off. Its compute and CPU seconds count the trunk, as if it had been trained alone.
"""

import json
import lzma
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

import gossamer
from gossamer.nn.prunable import active_parameters
from gossamer.zoo import GPT
from support.growing_learned import learn_growth

VOCABULARY = 256
HELD_OUT = 200_000
WARMUP = 100
DECAY = 0.2
REWARM = 0.02
# A run that is interrupted loses no more steps than this.
STRETCH = 1000


@dataclass
class State:
    """A model in training: where it stands, and what it took."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    flops: float = 0.0
    seconds: float = 0.0
    losses: list = field(default_factory=list)


def parts_of(text):
    """Bytes to train on, to choose on and to report on, as uint8 tensors."""
    raw = lzma.decompress(text.read_bytes()) if text.suffix == ".xz" else text.read_bytes()
    whole = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    held = min(HELD_OUT, len(whole) // 20)
    end = len(whole) - 2 * held
    return {"train": whole[:end], "choose": whole[end : end + held], "report": whole[end + held :]}


def fresh(given, sizes, rate, seed):
    """A model of (width, heads, layers) and its optimizer before the first step."""
    torch.manual_seed(seed)
    width, heads, layers = sizes
    model = GPT(VOCABULARY, width=width, num_heads=heads, num_layers=layers, context=given.context)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=given.decay, fused=True
    )
    return State(model, optimizer)


def batch_of(given, data, seed, number):
    """Batch `number` [B, T + 1] of a run: a function of the seed and its number."""
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + number)
    starts = torch.randint(len(data) - given.context, (given.batch,), generator=generator)
    return torch.stack([data[s : s + given.context + 1] for s in starts.tolist()]).long()


class FloatAttention(TorchFunctionMode):
    """Attention in float32, whatever the products around it are in."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            return func(*(x.float() for x in args), **(kwargs or {}))


@contextmanager
def arithmetic(is_bf16):
    """Products in bfloat16, and the attention that is fastest then at short context."""
    if not is_bf16:
        yield
        return
    fused = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    with torch.autocast("cpu", torch.bfloat16), fused, FloatAttention():
        yield


def loss_of(model, batch):
    logits = model(batch[:, :-1]).float()
    return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(given, data, state, until, factor, seed, control=None):
    """Steps up to `until`; `factor(step)` is on the rate."""
    state.model.train()
    flops = 6.0 * active_parameters(state.model) * given.batch * given.context
    while state.step < until:
        batch = batch_of(given, data, seed, state.step)
        began = time.process_time()
        for group in state.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor(state.step)
        with arithmetic(given.bf16):
            loss = loss_of(state.model, batch)
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        state.optimizer.step()
        if control is not None and control.step():
            flops = 6.0 * active_parameters(state.model) * given.batch * given.context
        state.seconds += time.process_time() - began
        state.flops += flops
        state.step += 1
        state.losses.append((state.flops / 1e12, loss.item()))


@torch.no_grad()
def evaluate(given, model, part):
    """Mean loss over a part of the text, in float32."""
    model.eval()
    width = given.context
    rows = (len(part) - 1) // width
    inputs = part[: rows * width].view(rows, width)
    targets = part[1 : rows * width + 1].view(rows, width)
    total = 0.0
    for x, y in zip(inputs.split(64), targets.split(64), strict=True):
        logits = model(x.long()).flatten(0, 1)
        total += cross_entropy(logits, y.long().flatten(), reduction="sum").item()
    return total / (rows * width)


class Trunks:
    """What runs have in common before they decay or grow, trained once and kept in files."""

    def __init__(self, given, data, folder):
        self.given, self.data, self.folder = given, data, folder
        folder.mkdir(parents=True, exist_ok=True)

    def at(self, sizes, rate, seed, step):
        """The state of a model of these sizes after `step` steps with a rate that stays."""
        state = fresh(self.given, sizes, rate, seed)
        for group in state.optimizer.param_groups:
            group["initial_lr"] = rate
        stem = "-".join(map(str, (*sizes, rate, seed)))
        known = {
            int(f.stem.rpartition("@")[2]): f for f in self.folder.glob(f"{stem}@*.safetensors")
        }
        last = max((number for number in known if number <= step), default=None)
        if last is not None:
            self._read(known[last], state)
        rise = lambda number: min(1.0, (number + 1) / WARMUP)  # noqa: E731
        while state.step < step:
            until = min(step, (state.step // STRETCH + 1) * STRETCH)
            train(self.given, self.data, state, until, rise, seed)
            self._write(self.folder / f"{stem}@{until}.safetensors", state)
        return state

    def finish(self, name, state, until, factor, seed):
        """Steps of one run up to `until`, kept under its name until it is done."""
        path = self.folder / f"{name}.safetensors"
        if path.exists():
            self._read(path, state)
        while state.step < until:
            end = min(until, (state.step // STRETCH + 1) * STRETCH)
            train(self.given, self.data, state, end, factor, seed)
            self._write(path, state)
        path.unlink(missing_ok=True)

    def _write(self, path, state):
        tensors = {f"model.{name}": t for name, t in state.model.state_dict().items()}
        for number, held in state.optimizer.state_dict()["state"].items():
            tensors |= {f"{number}.{key}": t for key, t in held.items()}
        facts = {name: getattr(state, name) for name in ("step", "flops", "seconds", "losses")}
        unfinished = path.with_suffix(".part")
        save_file(tensors, unfinished, {"facts": json.dumps(facts)})
        unfinished.replace(path)

    def _read(self, path, state):
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts = json.loads(file.metadata()["facts"])
        model, moments = {}, {}
        for name, tensor in tensors.items():
            home, _, rest = name.partition(".")
            (model if home == "model" else moments.setdefault(int(home), {}))[rest] = tensor
        state.model.load_state_dict(model)
        groups = state.optimizer.state_dict()["param_groups"]
        state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        vars(state).update(facts)


def curve_of(state, points=60):
    """The training loss as (TFLOP, mean over the steps since the last point)."""
    stretch = max(1, len(state.losses) // points)
    starts = range(0, len(state.losses) - stretch + 1, stretch)
    some = [state.losses[start : start + stretch] for start in starts]
    return [(round(s[-1][0], 3), round(sum(y for _, y in s) / stretch, 4)) for s in some]


def jump_of(given, data, seed, before, after, step):
    """How much the loss of the next batch changes by growing, in float32."""
    batch = batch_of(given, data, seed, step)
    with torch.no_grad():
        return (loss_of(after.eval(), batch) - loss_of(before.eval(), batch)).item()


def read_log(path):
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def grow_state(state, target, settings):
    """Let a state grow by `gossamer.grow`, in place."""
    asked = settings["grow"]
    state.model = gossamer.grow(state.model, state.optimizer, **target, **asked)


def learn(given, data, state, before, steps, seed):
    """Learn the growth for some steps (LiGO), which count as those of the large model."""
    batches = [batch_of(given, data, seed, state.step + number) for number in range(steps)]
    began = time.process_time()
    with arithmetic(given.bf16):
        state.flops += learn_growth(before, state.model, loss_of, batches)
    state.seconds += time.process_time() - began
    tokens = given.batch * given.context * len(batches)
    state.flops += 6.0 * active_parameters(state.model) * tokens
    state.step += steps


def reopened(state, done, steps, density):
    """A schedule that moves the masks of a grown model to `density` by RigL."""
    end = done + (steps - done) // 2
    settings = {
        "kind": "reopen", "begin": done + 1, "end": end, "every": max(1, (end - done) // 10),
        "sparsity": 1 - density,
        "pattern": "block:4x4" if state.model.width % 32 else "block:16x16",
    }  # fmt: skip
    control = gossamer.attach(state.model, settings, state.optimizer, total_steps=steps)
    control.begin_after(done)
    return control
