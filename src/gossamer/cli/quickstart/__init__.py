# SPDX-License-Identifier: Apache-2.0
"""`gossamer quickstart`: the whole story on a small model, with the proof beside it."""

from pathlib import Path

from click import Choice, option

from gossamer.cli.options import PATH, SPARSITY
from gossamer.cli.shell import Output, comparison_table, gossamer_command

_EXAMPLES = """
gossamer quickstart
gossamer quickstart --model minilm --out out/quickstart
gossamer quickstart --sparsity 0.95 --json
"""


@gossamer_command("The whole story on a small model, in a minute.", _EXAMPLES)
@option(
    "--model",
    type=Choice(["tiny", "minilm"]),
    default="tiny",
    help="tiny: built in, under a minute. minilm: a real sentence encoder (extra [demo]).",
)
@option(
    "--out",
    "folder",
    type=PATH,
    default=Path("gossamer-quickstart"),
    help="Folder for the models and report.html.",
)
@option("--sparsity", type=SPARSITY, help="Fraction of zeros.  [default: 0.9; minilm: 0.8]")
def quickstart(out: Output, model: str, folder: Path, sparsity: float | None) -> None:
    """Prune, train, save, load and run a small model; show what it gained and cost.

    Works without network. Prints one table and writes a self-contained report.html.
    """
    from gossamer.cli.quickstart.output import MODEL_FOLDER, check_folder, publish
    from gossamer.ops.timing.load import one_thread

    check_folder(folder)
    # Threads gain nothing on layers this small, and lose much on a busy machine.
    with one_thread():
        if model == "tiny":
            from gossamer.cli.quickstart.tiny import run_tiny

            story = run_tiny(folder, 0.9 if sparsity is None else sparsity, out)
        else:
            from gossamer.cli.quickstart.minilm import run_minilm

            story = run_minilm(folder, 0.8 if sparsity is None else sparsity, out)
    report = str(publish(story, folder))
    shown = comparison_table(story.page.comparison)
    after = f"Next: 'gossamer explain {folder / MODEL_FOLDER}' says which kernel runs each layer."
    document = {**story.document(), "report": report}
    out.result(document, shown, "", *story.remarks, after, f"Report: {report}")
