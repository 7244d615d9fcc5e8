# SPDX-License-Identifier: Apache-2.0
"""`gossamer prune`: one-shot pruning of a saved model, with bytes and time beside dense."""

from pathlib import Path

import click

from gossamer.cli.command import Command
from gossamer.cli.output import Output, table
from gossamer.cli.parameters import POSITIVE, Sparsity

_EXAMPLES = """
gossamer prune zoo:mlp -o pruned/ --sparsity 0.9
gossamer prune my-bert/ -o pruned/ --sparsity 0.8 --budget global --ignore 'pooler.*'
gossamer prune my-bert/ -o pruned/ --pattern 2:4 --target 'encoder.*' --format dense
"""


@click.command(
    cls=Command, examples=_EXAMPLES, short_help="Prune a model; bytes and time beside dense."
)
@click.argument("model", metavar="MODEL")
@click.option(
    "-o", "--out", "target", type=click.Path(path_type=Path), required=True, help="Artifact folder."
)
@click.option("--sparsity", type=Sparsity(), help="Fraction of zeros; not with 2:4 and the like.")
@click.option(
    "--pattern",
    default="unstructured",
    show_default=True,
    help="Which zeros are legal: unstructured, 2:4, 64:2:8, nmg:2:4:16, block:4x4.",
)
@click.option(
    "--scorer", default="magnitude", show_default=True, help="What says a weight matters."
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
    sparsity: float | None,
    pattern: str,
    scorer: str,
    budget: str,
    targets: tuple[str, ...],
    ignore: tuple[str, ...],
    form: str,
    tokens: int,
) -> None:
    """Prune MODEL in one shot, save it to OUT and show bytes and time beside the dense model.

    MODEL is a local Hugging Face directory, a gossamer artifact, a gguf file of the Llama family, a
    packaged model (demo:minilm, demo:smollm2), or zoo:mlp and zoo:tiny-encoder.
    OUT gets the weights, the tokenizer if there is one, report.json and card.md; a folder that is
    no artifact is not touched.
    Quality is not measured here: without recovery training expect it to drop.
    """
    from gossamer.cli.pruning import PruneRequest, run_prune

    request = PruneRequest(
        model=model,
        target=target,
        recipe={
            "sparsity": sparsity,
            "pattern": pattern,
            "scorer": scorer,
            "budget": budget,
            "targets": list(targets) or None,
            "ignore": list(ignore) or None,
        },
        form=form,
        tokens=tokens,
    )
    outcome = run_prune(request, out)
    head, *rows = outcome.comparison.cells()
    shown = table(head[0], *(f">{text}" for text in head[1:]))
    for row in rows:
        shown.add_row(*row)
    out.result(outcome.document, outcome.layer_table(), shown, *outcome.remarks)
