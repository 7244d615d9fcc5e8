# SPDX-License-Identifier: Apache-2.0
"""`gossamer prune`: one-shot pruning of a saved model, with bytes and time beside dense."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from click import Choice, argument, get_current_context, option
from click.core import ParameterSource

from gossamer.cli.options import (
    PATH,
    POSITIVE,
    SPARSITY,
    artifact_option,
    dry_run_option,
    resume_option,
    set_option,
)
from gossamer.cli.shell import Output, comparison_table, gossamer_command, resume_command, table
from gossamer.method_table import methods_that_need

_EXAMPLES = """
gossamer prune zoo:mlp -o pruned/ --sparsity 0.9
gossamer prune my-bert/ -o pruned/ --sparsity 0.8 --budget global --ignore 'pooler.*'
gossamer prune my-bert/ -o pruned/ --pattern 2:4 --target 'encoder.*' --format dense
gossamer prune my-llama/ -o pruned/ --recipe sparsegpt-50 --data text.txt --set sparsity=0.6
"""
# Options that make a recipe of one stage, and their names in it.
_FLAGS = {
    "sparsity": "sparsity",
    "pattern": "pattern",
    "scorer": "method",
    "budget": "budget",
    "targets": "targets",
    "ignore": "ignore",
}


@gossamer_command("Prune a model; bytes and time beside dense.", _EXAMPLES)
@argument("model")
@artifact_option
@option("--recipe", help="A recipe file or a built-in name ('gossamer recipe list').")
@set_option
@option(
    "--data",
    type=PATH,
    help="Calibration: .txt, .jsonl ({text} or {text_a, text_b, score}), .safetensors (input_ids).",
)
@option("--eval", "evaluation", type=PATH, help="Like --data, for the quality.")
@option("--teacher", help="The dense model, to recover one that is pruned already.")
@resume_option
@dry_run_option
@option("--sparsity", type=SPARSITY, help="Fraction of zeros; not with 2:4 and the like.")
@option(
    "--pattern",
    default="unstructured",
    help="Which zeros are legal: unstructured, 2:4, 64:2:8, nmg:2:4:16, block:4x4.",
)
@option(
    "--scorer",
    default="magnitude",
    help=f"{', '.join(methods_that_need('nothing'))};"
    f" with --data {', '.join(methods_that_need('inputs'))}.",
)
@option("--budget", default="uniform", help="uniform, global or erk over the layers.")
@option("--target", "targets", multiple=True, help="Class, glob or re:... to prune; repeatable.")
@option("--ignore", multiple=True, help="Class, glob or re:... to leave alone; repeatable.")
@option(
    "--format",
    "form",
    type=Choice(["packed", "dense"]),
    default="packed",
    help="packed: kept weights only. dense: ordinary safetensors with zeros.",
)
@option("--tokens", type=POSITIVE, default=128, help="Activation rows to time with.")
def prune(
    out: Output,
    /,
    model: str,
    target: Path,
    recipe: str | None,
    overrides: tuple[str, ...],
    teacher: str | None,
    dry_run: bool,
    **asked: Any,
) -> None:
    """Prune MODEL, save it to OUT and show quality, bytes and time beside the dense model.

    MODEL is a local Hugging Face directory, a gossamer artifact, a gguf file of a decoder, a
    packaged model (demo:minilm, demo:smollm2), or zoo:mlp and zoo:tiny-encoder.
    OUT gets the weights, the tokenizer if there is one, report.json and card.md; a folder that is
    no artifact is not touched.
    With --data text the layers are pruned as the text flows through the model, and the quality is
    measured on --eval, or on the part of --data that calibration did not use. A run that was
    stopped goes on with --resume.
    """
    from gossamer.cli.models import origin
    from gossamer.report import format_bytes
    from gossamer.runs.pruning import PruneRequest, chosen_recipe, plan_prune, run_prune

    flags = {field: asked.pop(name) for name, field in _FLAGS.items()}
    for rules in ("targets", "ignore"):
        flags[rules] = list(flags[rules]) or None
    source_of = get_current_context().get_parameter_source
    given = [name for name in _FLAGS if source_of(name) is not ParameterSource.DEFAULT]
    request = PruneRequest(
        origin(model),
        target,
        chosen_recipe(recipe, overrides, flags, given),
        teacher=None if teacher is None else origin(teacher),
        how_to_resume=resume_command(),
        **asked,
    )
    if dry_run:
        plan = plan_prune(request, out)
        more = {"peak_bytes": plan.peak_bytes, "out": str(target), "written": False}
        # In the order in which they are pruned.
        layers = (
            (
                row.name,
                "x".join(map(str, row.shape)),
                row.pattern,
                f"{row.kept:,}",
                f"{row.seconds:.2f}",
            )
            for row in plan.layers
        )
        totals = (
            ("calibration tokens", f"{plan.num_tokens:,}"),
            ("memory now, model included", format_bytes(plan.process_bytes)),
            ("activations of all batches", format_bytes(plan.activation_bytes)),
            ("copies of weights", format_bytes(plan.copy_bytes)),
            ("statistics and solver", format_bytes(plan.solver_bytes)),
            ("peak memory", format_bytes(plan.peak_bytes)),
            ("seconds of pruning, as loaded as now", f"{plan.seconds:.0f}"),
        )
        out.result(
            {**asdict(plan), **more},
            table("layer", "shape", "pattern", ">kept", ">seconds", rows=layers),
            table("", ">estimate", rows=totals),
        )
        return
    outcome = run_prune(request, out)
    shown = table(
        "layer",
        "shape",
        "pattern",
        ">sparsity",
        ">dense",
        ">pruned",
        "format",
        "note",
        rows=(
            (
                row.name,
                "x".join(map(str, row.shape)),
                row.pattern,
                f"{row.sparsity:.1%}",
                format_bytes(row.bytes_dense),
                format_bytes(row.bytes_sparse),
                row.format,
                row.note,
            )
            for row in outcome.report.layers
        ),
    )
    out.result(outcome.document, shown, comparison_table(outcome.comparison), *outcome.remarks)
