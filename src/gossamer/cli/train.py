# SPDX-License-Identifier: Apache-2.0
"""`gossamer train`: a recipe and data become a trained, sparse artifact; stopped runs go on."""

import os
from pathlib import Path
from typing import Any

from click import argument, option

from gossamer.cli.options import artifact_option, dry_run_option, resume_option, set_option
from gossamer.cli.shell import Output, gossamer_command, resume_command, table

_EXAMPLES = """
gossamer train train-gradual --data zoo:images -o trained/
gossamer train train-rigl --data fashion.npz -o trained/ --set sparsity=0.95 --set steps=2000
gossamer train train-gpt --data shakespeare.txt -o gpt/ --dry-run
gossamer train train-gpt --data shakespeare.txt -o gpt/ --resume
torchrun --nproc-per-node 4 -m gossamer train my-recipe.yaml --data shakespeare.txt -o gpt/
gossamer train my-recipe.yaml --model my_package.models:build --data images.npz -o mine/
"""


@gossamer_command("Train sparse with a recipe; resumable to the bit.", _EXAMPLES)
@argument("recipe")
@artifact_option
@option(
    "--data",
    metavar="DATA",
    help="images: .npz or idx folder; text: .txt; labelled: .jsonl; or zoo:images, zoo:text,"
    " zoo:labelled.",
)
@option("--eval", "evaluation", metavar="FILE", help="Measure on it, not on held-out data.")
@set_option
@option(
    "--model",
    metavar="MODEL",
    help="An artifact or model folder, zoo:NAME, demo:NAME, or module:function of yours that"
    " returns a module or a gossamer.data.tasks.Task.",
)
@resume_option
@option(
    "--allow-recipe-change",
    "allow_change",
    is_flag=True,
    help="Resume although recipe or data changed.",
)
@option("--tensorboard", is_flag=True, help="Also write TensorBoard event files.")
@dry_run_option
def train(
    out: Output,
    /,
    recipe: str,
    target: Path,
    overrides: tuple[str, ...],
    model: str | None,
    dry_run: bool,
    **asked: Any,
) -> None:
    """Train as RECIPE says and save the model to OUT.

    RECIPE is a file or a built-in name ('gossamer recipe list') with one stage, train. OUT gets the
    artifact at the end; OUT.run beside it holds checkpoints, metrics.jsonl and report.html.
    Ctrl-C saves and prints the command that goes on; a run that was killed goes on from its last
    checkpoint, to the same bits.
    """
    from gossamer.recipes import load_recipe
    from gossamer.training.distributed import told_once_per_host

    with told_once_per_host():
        loaded = load_recipe(recipe, overrides)
    if "RANK" in os.environ:
        # One rank tells why a run ended; stacks of lost connections on all others hide it.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # After the recipe: its faults are told before torch is loaded.
    from gossamer.cli.models import load_function
    from gossamer.cli.shell.grid_exit import ends_for_good
    from gossamer.report import format_bytes
    from gossamer.runs.training import TrainRequest, plan_train, run_train

    request = TrainRequest(
        loaded,
        given=None if model is None else lambda: load_function(model, out.note)(),
        given_name=model or "",
        how_to_resume=resume_command(),
        **asked,
    )
    if dry_run:
        plan = plan_train(request, target, out)
        rows = [
            ("steps", f"{plan.steps:,}"),
            ("batches in an epoch", f"{plan.batches_per_epoch:,}"),
            ("parameters", f"{plan.parameters:,}"),
            ("of them in pruned layers", f"{plan.pruned:,}"),
            *(
                (f"{kind}, once masks are final", format_bytes(count))
                for kind, count in plan.bytes_by_kind.items()
            ),
            ("training state, dense", format_bytes(plan.bytes_dense)),
            ("one checkpoint, before compaction", format_bytes(plan.checkpoint_bytes)),
            ("time at the dense step's speed", f"{plan.seconds:.0f} s"),
        ]
        out.result(plan.document, table("", ">estimate", rows=rows))
        return
    with ends_for_good():
        result = run_train(request, target, out)
    if result is None:
        out.silence()
        return
    report, compaction = result.report, result.document["training"]["compaction"]
    figures = [(name, "not measured", f"{value:.4f}") for name, value in result.quality.items()]
    figures.append(("sparsity of pruned layers", "0", f"{report.sparsity:.4f}"))
    sizes = {"bytes of tensors": (report.bytes_dense, report.bytes_sparse)}
    if compaction is not None:
        sizes["bytes of training state"] = compaction["bytes_before"], compaction["bytes_after"]
    figures += [(title, format_bytes(a), format_bytes(b)) for title, (a, b) in sizes.items()]
    effect = result.document["step_ms"]
    if effect is not None and effect[0] is not None:
        figures.append(("ms of a step", f"{effect[0]:.2f}", f"{effect[1]:.2f}"))
    shown = table("", ">dense", ">trained", rows=figures)
    out.result(result.document, shown, f"Saved to {target}. Curves: {result.page}")
