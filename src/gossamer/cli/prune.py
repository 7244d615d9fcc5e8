# SPDX-License-Identifier: Apache-2.0
"""`gossamer prune`: one-shot pruning of a saved model, with bytes and time beside dense."""

from pathlib import Path

import click

from gossamer.cli.shell.command import Command
from gossamer.cli.shell.output import Output, table
from gossamer.cli.shell.parameters import POSITIVE, SPARSITY

_EXAMPLES = """
gossamer prune zoo:mlp -o pruned/ --sparsity 0.9
gossamer prune my-bert/ -o pruned/ --sparsity 0.8 --budget global --ignore 'pooler.*'
gossamer prune my-bert/ -o pruned/ --pattern 2:4 --target 'encoder.*' --format dense
gossamer prune my-llama/ -o pruned/ --recipe sparsegpt-50 --data text.txt --set sparsity=0.6
"""


@click.command(
    cls=Command, examples=_EXAMPLES, short_help="Prune a model; bytes and time beside dense."
)
@click.argument("model", metavar="MODEL")
@click.option(
    "-o", "--out", "target", type=click.Path(path_type=Path), required=True, help="Artifact folder."
)
@click.option("--recipe", help="A recipe file or a built-in name ('gossamer recipe list').")
@click.option(
    "--set", "overrides", multiple=True, help="name=value in the recipe; repeatable.", metavar="K=V"
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Calibration: .txt, .jsonl ({text} or {text_a, text_b, score}), .safetensors (input_ids).",
)
@click.option(
    "--eval", "evaluation", type=click.Path(path_type=Path), help="Like --data, for the quality."
)
@click.option("--teacher", help="The dense model, to recover one that is pruned already.")
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped.")
@click.option("--dry-run", is_flag=True, help="Say what it would do, need and take; write nothing.")
@click.option("--sparsity", type=SPARSITY, help="Fraction of zeros; not with 2:4 and the like.")
@click.option(
    "--pattern",
    default="unstructured",
    show_default=True,
    help="Which zeros are legal: unstructured, 2:4, 64:2:8, nmg:2:4:16, block:4x4.",
)
@click.option(
    "--scorer",
    default="magnitude",
    show_default=True,
    help="magnitude, random; with --data wanda, sparsegpt, admm, exact-obs.",
)
@click.option(
    "--budget", default="uniform", show_default=True, help="uniform, global or erk over the layers."
)
@click.option(
    "--target", "targets", multiple=True, help="Class, glob or re:... to prune; repeatable."
)
@click.option("--ignore", multiple=True, help="Class, glob or re:... to leave alone; repeatable.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["packed", "dense"]),
    default="packed",
    show_default=True,
    help="packed: kept weights only. dense: ordinary safetensors with zeros.",
)
@click.option(
    "--tokens", type=POSITIVE, default=128, show_default=True, help="Activation rows to time with."
)
@click.pass_obj
def prune(  # noqa: PLR0913  (one argument per option)
    out: Output,
    model: str,
    target: Path,
    recipe: str | None,
    overrides: tuple[str, ...],
    data: Path | None,
    evaluation: Path | None,
    teacher: str | None,
    resume: bool,
    dry_run: bool,
    sparsity: float | None,
    pattern: str,
    scorer: str,
    budget: str,
    targets: tuple[str, ...],
    ignore: tuple[str, ...],
    form: str,
    tokens: int,
) -> None:
    """Prune MODEL, save it to OUT and show quality, bytes and time beside the dense model.

    MODEL is a local Hugging Face directory, a gossamer artifact, a gguf file of the Llama family, a
    packaged model (demo:minilm, demo:smollm2), or zoo:mlp and zoo:tiny-encoder.
    OUT gets the weights, the tokenizer if there is one, report.json and card.md; a folder that is
    no artifact is not touched.
    With --data text the layers are pruned as the text flows through the model, and the quality is
    measured on --eval, or on the part of --data that calibration did not use. A run that was
    stopped goes on with --resume.
    """
    from gossamer.cli.pruning import chosen_recipe, run_prune
    from gossamer.cli.pruning_input import PruneRequest
    from gossamer.cli.pruning_plan import plan_prune

    flags = {
        "sparsity": sparsity,
        "pattern": pattern,
        "method": scorer,
        "budget": budget,
        "targets": list(targets) or None,
        "ignore": list(ignore) or None,
    }
    request = PruneRequest(
        model=model,
        target=target,
        recipe=chosen_recipe(recipe, overrides, flags, _given_flags()),
        data=data,
        evaluation=evaluation,
        resume=resume,
        form=form,
        tokens=tokens,
        teacher=teacher,
    )
    if dry_run:
        planned = plan_prune(request, out)
        out.result(planned.document, planned.layer_table(), planned.totals())
        return
    outcome = run_prune(request, out)
    head, *rows = outcome.comparison.cells()
    shown = table(head[0], *(f">{text}" for text in head[1:]))
    for row in rows:
        shown.add_row(*row)
    out.result(outcome.document, outcome.layer_table(), shown, *outcome.remarks)


def _given_flags() -> list[str]:
    """Flags of a one-stage recipe that the user typed."""
    context = click.get_current_context()
    names = ("sparsity", "pattern", "scorer", "budget", "targets", "ignore")
    default = click.core.ParameterSource.DEFAULT
    return [name for name in names if context.get_parameter_source(name) is not default]
