# SPDX-License-Identifier: Apache-2.0
"""`gossamer quickstart`: the whole story on a small model, with the proof beside it."""

from pathlib import Path

import click

from gossamer.cli.shell import SPARSITY, Command, Output
from gossamer.cli.shell.output import comparison_table

_EXAMPLES = """
gossamer quickstart
gossamer quickstart --model minilm --out out/quickstart
gossamer quickstart --sparsity 0.95 --json
"""


@click.command(
    cls=Command, examples=_EXAMPLES, short_help="The whole story on a small model, in a minute."
)
@click.option(
    "--model",
    type=click.Choice(["tiny", "minilm"]),
    default="tiny",
    show_default=True,
    help="tiny: built in, under a minute. minilm: a real sentence encoder (extra [demo]).",
)
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("gossamer-quickstart"),
    show_default=True,
    help="Folder for the models and report.html.",
)
@click.option("--sparsity", type=SPARSITY, help="Fraction of zeros.  [default: 0.9; minilm: 0.8]")
@click.pass_obj
def quickstart(out: Output, model: str, folder: Path, sparsity: float | None) -> None:
    """Prune, train, save, load and run a small model; show what it gained and cost.

    Works without network. Prints one table and writes a self-contained report.html.
    """
    from gossamer.cli.quickstart.output import check_folder, publish

    check_folder(folder)
    if model == "tiny":
        from gossamer.cli.quickstart.tiny import run_tiny

        story = run_tiny(folder, 0.9 if sparsity is None else sparsity, out)
    else:
        from gossamer.cli.quickstart.minilm import run_minilm

        story = run_minilm(folder, 0.8 if sparsity is None else sparsity, out)
    report_path = publish(story, folder)
    shown = comparison_table(story.page.comparison)
    remarks = [*story.remarks, f"Report: {report_path}"]
    out.result({**story.document(), "report": str(report_path)}, shown, "", *remarks)
