# SPDX-License-Identifier: Apache-2.0
"""The training runs behind the golden checkpoints: masks that move, and layers that are compact.

Inputs are made of whole numbers, so that they are the same for every version of torch.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gossamer
from gossamer.training.checkpoint import Checkpoint, CheckpointStore, CheckpointWriter
from gossamer.training.loop import LearningRate, Loop, LoopSettings, Surroundings
from gossamer.training.optim import LAMB, SGD, AdamW
from gossamer.zoo import TinyEncoder

# The checkpoint that is kept, and the end of the run that goes on from it.
KEPT_STEP, LAST_STEP = 8, 14


class _Sentences:
    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = (torch.arange(8 * 6).view(8, 6) * 7 + 5 * number) % 20
        return tokens, (tokens.sum(dim=1) % 3)


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    tokens, labels = batch
    return nn.functional.cross_entropy(model(tokens), labels)


def _loop(
    schedule: dict[str, Any],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    writer: CheckpointWriter,
    **settings: Any,
) -> Loop:
    torch.manual_seed(1)
    model = TinyEncoder(20, 3, width=16, num_heads=2, num_layers=1, ffn_width=24)
    trainer = optimizer(model)
    return Loop(
        model,
        trainer,
        _loss,
        _Sentences(),
        LoopSettings(
            LAST_STEP,
            LearningRate("cosine", LAST_STEP, warmup=2),
            checkpoint_every=KEPT_STEP,
            **settings,
        ),
        control=gossamer.attach(model, schedule, trainer, total_steps=LAST_STEP),
        around=Surroundings(writer=writer, run={"golden": True}),
    )


RUNS: dict[str, Callable[[CheckpointWriter], Loop]] = {
    "masked_rigl": lambda writer: _loop(
        {"kind": "rigl", "sparsity": 0.7, "every": 3},
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        writer,
        compaction="off",
        clip=1.0,
    ),
    "masked_8bit": lambda writer: _loop(
        {"kind": "gradual", "sparsity": 0.8, "begin": 1, "end": 12, "every": 2},
        lambda model: AdamW(model.parameters(), lr=0.01, moments="8bit"),
        writer,
        precision="bf16",
        compaction="jit",
    ),
    "compact_split_8bit": lambda writer: _loop(
        {"kind": "gradual", "sparsity": 0.8, "begin": 1, "end": 5, "every": 2},
        lambda model: AdamW(model.parameters(), lr=0.01, moments="8bit", fused=True),
        writer,
        compaction="kernel",
        split_masters=True,
    ),
    "compact_jit_sgd": lambda writer: _loop(
        {"kind": "gradual", "sparsity": 0.8, "begin": 1, "end": 5, "every": 2},
        lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, moments="8bit"),
        writer,
        compaction="jit",
        accumulate=2,
    ),
    "masked_lamb": lambda writer: _loop(
        {"kind": "gradual", "sparsity": 0.8, "begin": 1, "end": 12, "every": 2},
        lambda model: LAMB(model.parameters(), lr=0.01, moments="8bit"),
        writer,
        compaction="resident",
    ),
}


def start(name: str, folder: Path) -> Loop:
    """A run of the catalogue whose checkpoints go to `folder`."""
    return RUNS[name](CheckpointWriter(CheckpointStore(folder, keep=9)))


def digests_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a further step depends on: texts and numbers as they are, tensors as digests."""
    state = dict(checkpoint.state)
    state["counters"] = {k: v for k, v in state["counters"].items() if k != "seconds"}
    return {"step": checkpoint.step, "run": checkpoint.run, "state": _plain(state)}


def machine() -> dict[str, str]:
    """On what products are the same to the last bit."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "",
    )
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "capability": capability, "cpu": cpu}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return [str(value.dtype), list(value.shape), hashlib.sha256(raw).hexdigest()[:32]]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return json.loads(json.dumps(value))
