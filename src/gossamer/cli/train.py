# SPDX-License-Identifier: Apache-2.0
"""`gossamer train`: a recipe and data become a trained, sparse artifact; stopped runs go on."""

import os
from pathlib import Path

import click

from gossamer.cli.shell.command import Command
from gossamer.cli.shell.output import Output

_EXAMPLES = """
gossamer train train-gradual --data zoo:images -o trained/
gossamer train train-rigl --data fashion.npz -o trained/ --set sparsity=0.95 --set steps=2000
gossamer train train-gpt --data shakespeare.txt -o gpt/ --dry-run
gossamer train train-gpt --data shakespeare.txt -o gpt/ --resume
torchrun --nproc-per-node 4 -m gossamer train my-recipe.yaml --data shakespeare.txt -o gpt/
gossamer train my-recipe.yaml --model my_package.models:build --data images.npz -o mine/
"""


@click.command(
    cls=Command, examples=_EXAMPLES, short_help="Train sparse with a recipe; resumable to the bit."
)
@click.argument("recipe", metavar="RECIPE")
@click.option(
    "-o", "--out", "target", type=click.Path(path_type=Path), required=True, help="Artifact folder."
)
@click.option(
    "--data",
    metavar="DATA",
    help="images: .npz or idx folder; text: .txt; labelled: .jsonl; or zoo:images, zoo:text,"
    " zoo:labelled.",
)
@click.option("--eval", "evaluation", metavar="FILE", help="Measure on it, not on held-out data.")
@click.option(
    "--set", "overrides", multiple=True, help="name=value in the recipe; repeatable.", metavar="K=V"
)
@click.option(
    "--model",
    metavar="MODEL",
    help="An artifact or model folder, zoo:NAME, demo:NAME, or module:function of yours that"
    " returns a module or a gossamer.data.tasks.Task.",
)
@click.option("--resume", is_flag=True, help="Go on with the run that was stopped.")
@click.option("--allow-recipe-change", is_flag=True, help="Resume although recipe or data changed.")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard event files.")
@click.option("--dry-run", is_flag=True, help="Say what it would do, need and take; write nothing.")
@click.pass_obj
def train(  # noqa: PLR0913  (one argument per option)
    out: Output,
    recipe: str,
    target: Path,
    data: str | None,
    evaluation: str | None,
    overrides: tuple[str, ...],
    model: str | None,
    resume: bool,
    allow_recipe_change: bool,
    tensorboard: bool,
    dry_run: bool,
) -> None:
    """Train as RECIPE says and save the model to OUT.

    RECIPE is a file or a built-in name ('gossamer recipe list') with one stage, train. OUT gets the
    artifact at the end; OUT.run beside it holds checkpoints, metrics.jsonl and report.html.
    Ctrl-C saves and prints the command that goes on; a run that was killed goes on from its last
    checkpoint, to the same bits.
    """
    from gossamer.recipes.loader import load_recipe
    from gossamer.training.distributed.told_once import told_once_per_host

    with told_once_per_host():
        loaded = load_recipe(recipe, overrides)
    if "RANK" in os.environ:
        # One rank tells why a run ended; stacks of lost connections on all others hide it.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # After the recipe: its faults are told before torch is loaded.
    from gossamer.cli.training import TrainCommand, plan_table, plan_training, run_command

    command = TrainCommand(
        recipe=loaded,
        target=target,
        data=data,
        evaluation=evaluation,
        model=model,
        resume=resume,
        allow_change=allow_recipe_change,
        tensorboard=tensorboard,
    )
    if dry_run:
        planned = plan_training(command, out)
        out.result(planned.document, plan_table(planned))
        return
    outcome = run_command(command, out)
    if outcome is None:
        out.silence()
        return
    out.result(outcome.document, outcome.table(), *outcome.remarks)
