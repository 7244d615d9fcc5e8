# SPDX-License-Identifier: Apache-2.0
"""`gossamer prune` with a recover stage, killed with SIGKILL inside the stage; run as a script.

`python recover_drill.py FOLDER SETTINGS` forks one run per moment, kills it there, resumes it in
another fork and prints one JSON line: how it ended, the checkpoint it left, and whether the weights
equal those of an undisturbed run, byte by byte. SETTINGS are those of the stage, as YAML.
"""

import json
import sys
from pathlib import Path

import torch
import torch._dynamo  # seconds of imports that an optimizer asks for; once, before the forks
from safetensors.torch import save_file
from train_drill import Calls, in_child

import gossamer.runs.verbs  # noqa: F401  (once, before the forks)
from gossamer.cli.main import main
from gossamer.io.safe_files import tensors
from gossamer.training.checkpoint import folders as checkpoint

RECIPE = """\
gossamer: 1
calibration: {{samples: 8, tokens: 16}}
stages:
  - prune: {{method: wanda, sparsity: 0.8}}
  - recover: {{{settings}, steps: 12, batch: 4, checks: 3, rate: 0.003, checkpoint: {{every: 4}}}}
"""
STEP = [(torch.optim.AdamW, "step")]
DISK = [(tensors.HashingFile, "write"), (checkpoint.CheckpointStore, "_remove_old")]


def arguments(folder: Path, out: str, *extra: str) -> list[str]:
    recipe, data = str(folder / "recipe.yaml"), str(folder / "ids.safetensors")
    given = ["prune", "zoo:tiny-encoder", "-o", str(folder / out), "--recipe", recipe]
    return [*given, "--data", data, "-q", *extra]


def killed(folder: Path, out: str, hooks: list, call: int, before: bool) -> int:
    Calls(hooks, call, before)
    return main(arguments(folder, out))


def weights(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("*.safetensors")}


def drill(folder: Path) -> None:
    if in_child(lambda: main(arguments(folder, "whole"))) != 0:
        raise SystemExit("the undisturbed run failed")
    whole = weights(folder / "whole")
    moments = [(STEP, 3, True), (STEP, 7, False), (STEP, 12, False), (DISK, 9, True)]
    for number, (hooks, call, before) in enumerate(moments):
        out = f"out{number}"
        code = in_child(lambda out=out, h=hooks, c=call, b=before: killed(folder, out, h, c, b))
        run = folder / f"{out}.run"
        newest = checkpoint.CheckpointStore(run / "checkpoints" / "stage_1").newest(print)
        line = {
            "code": code,
            "newest": None if newest is None else newest.step,
            "refused": in_child(lambda out=out: main(arguments(folder, out))),
            "resumed": in_child(lambda out=out: main(arguments(folder, out, "--resume"))),
            "equal": bool(whole) and weights(folder / out) == whole,
            "left": sorted(path.name for path in run.iterdir()),
            "metrics": [
                json.loads(text)["step"]
                for text in (run / "metrics_stage_1.jsonl").read_text().splitlines()
                if json.loads(text)["kind"] == "evaluation"
            ],
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    (place / "recipe.yaml").write_text(RECIPE.format(settings=sys.argv[2]))
    ids = torch.randint(1000, (24, 16), generator=torch.Generator().manual_seed(0))
    save_file({"input_ids": ids}, place / "ids.safetensors")
    drill(place)
