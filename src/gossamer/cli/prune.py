# SPDX-License-Identifier: Apache-2.0
"""`gossamer prune`: one-shot pruning of a saved model, with bytes and time beside dense."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gossamer.cli.shell import POSITIVE, SPARSITY, Command, Output, table
from gossamer.cli.shell.output import comparison_table
from gossamer.cli.shell.resuming import resume_command
from gossamer.method_table import methods_that_need

if TYPE_CHECKING:
    from rich.table import Table

    from gossamer.report import Report
    from gossamer.runs.pruning import StagePlan

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
    help=f"{', '.join(methods_that_need('nothing'))};"
    f" with --data {', '.join(methods_that_need('inputs'))}.",
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
    from gossamer.cli.models.sources import origin
    from gossamer.runs.pruning import PruneRequest, chosen_recipe, plan_prune, run_prune

    flags = {
        "sparsity": sparsity,
        "pattern": pattern,
        "method": scorer,
        "budget": budget,
        "targets": list(targets) or None,
        "ignore": list(ignore) or None,
    }
    request = PruneRequest(
        origin=origin(model),
        target=target,
        recipe=chosen_recipe(recipe, overrides, flags, _given_flags()),
        data=data,
        evaluation=evaluation,
        teacher=None if teacher is None else origin(teacher),
        resume=resume,
        form=form,
        tokens=tokens,
        how_to_resume=resume_command(),
    )
    if dry_run:
        plan = plan_prune(request, out)
        content = {**asdict(plan), "peak_bytes": plan.peak_bytes, "out": str(target)}
        out.result({**content, "written": False}, *_plan_tables(plan))
        return
    outcome = run_prune(request, out)
    shown = comparison_table(outcome.comparison)
    out.result(outcome.document, _layer_table(outcome.report), shown, *outcome.remarks)


def _layer_table(report: "Report") -> "Table":
    """The plan as it was carried out, one line per layer."""
    from gossamer.report import format_bytes

    shown = table("layer", "shape", "pattern", ">sparsity", ">dense", ">pruned", "format", "note")
    for row in report.layers:
        shown.add_row(
            row.name,
            "x".join(map(str, row.shape)),
            row.pattern,
            f"{row.sparsity:.1%}",
            format_bytes(row.bytes_dense),
            format_bytes(row.bytes_sparse),
            row.format,
            row.note,
        )
    return shown


def _plan_tables(plan: "StagePlan") -> tuple["Table", "Table"]:
    """The layers in the order in which they are pruned; then memory and time."""
    from gossamer.report import format_bytes

    layers = table("layer", "shape", "pattern", ">kept", ">seconds")
    for layer in plan.layers:
        shape = "x".join(map(str, layer.shape))
        layers.add_row(layer.name, shape, layer.pattern, f"{layer.kept:,}", f"{layer.seconds:.2f}")
    totals = table("", ">estimate")
    totals.add_row("calibration tokens", f"{plan.num_tokens:,}")
    for title, count in (
        ("memory now, model included", plan.process_bytes),
        ("activations of all batches", plan.activation_bytes),
        ("copies of weights", plan.copy_bytes),
        ("statistics and solver", plan.solver_bytes),
        ("peak memory", plan.peak_bytes),
    ):
        totals.add_row(title, format_bytes(count))
    totals.add_row("seconds of pruning, as loaded as now", f"{plan.seconds:.0f}")
    return layers, totals


def _given_flags() -> list[str]:
    """Flags of a one-stage recipe that the user typed."""
    context = click.get_current_context()
    names = ("sparsity", "pattern", "scorer", "budget", "targets", "ignore")
    default = click.core.ParameterSource.DEFAULT
    return [name for name in names if context.get_parameter_source(name) is not default]
