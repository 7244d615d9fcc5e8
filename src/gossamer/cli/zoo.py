# SPDX-License-Identifier: Apache-2.0
"""`gossamer zoo`: models that are made again here, and checked. Nothing here imports torch."""

from dataclasses import asdict
from pathlib import Path

from click import argument, option

from gossamer.cli.options import PATH
from gossamer.cli.shell import CommandGroup, Output, gossamer_command, table

_LIST = """
gossamer zoo list
gossamer zoo list --json
"""
_MAKE = """
gossamer zoo make images-gradual-90 -o images/
gossamer zoo make minilm-magnitude-50 -o minilm/
"""


@gossamer_command("What can be made, and what it gave.", _LIST, "list")
def list_entries(out: Output) -> None:
    """Names, scores, bytes and times of the models that `gossamer zoo make` makes."""
    from gossamer.report import format_bytes
    from gossamer.runs.zoo import ENTRIES

    shown = table("name", "score", ">dense", ">reached", ">weights", ">minutes", "what it is")
    for entry in ENTRIES:
        dense = "-" if entry.dense is None else f"{entry.dense:.4g}"
        size = format_bytes(entry.weight_bytes)
        numbers = (dense, f"{entry.reached:.4g}", size, f"{entry.minutes:g}")
        shown.add_row(entry.name, entry.score, *numbers, entry.description)
    times = table(
        "name", ">dense ms", ">ms", "machine",
        rows=(
            (entry.name, f"{dense:.2f}", f"{ms:.2f}", machine)
            for entry in ENTRIES
            for machine, (dense, ms) in entry.milliseconds.items()
        ),
    )  # fmt: skip
    out.result(
        {"entries": [asdict(entry) for entry in ENTRIES]}, shown, *([times] if times.rows else [])
    )


@gossamer_command("Make a model of the zoo and check it.", _MAKE)
@argument("name")
@option("-o", "--out", "target", required=True, type=PATH, help="Artifact folder.")
def make(out: Output, name: str, target: Path) -> None:
    """Carry out the recipe of NAME on packaged models and generated data, and check the result.

    The weights must have the recorded digest where the same kernels compute them, and the recorded
    score elsewhere; if not, the exit code is 3.
    """
    from gossamer.cli.models import demo_path
    from gossamer.report import format_bytes
    from gossamer.runs.sources import Source, load_path
    from gossamer.runs.zoo import make_entry

    def packaged(model: str) -> Source:
        return load_path(demo_path(model), f"demo:{model}", out.note, detect_masks=None)

    with out.stage(f"making {name}"):
        made = make_entry(name, target, packaged)
    entry = made.entry
    shown = table("", ">recorded", ">here")
    shown.add_row(entry.score, f"{entry.reached:.4g}", f"{made.score:.4g}")
    shown.add_row("weights", format_bytes(entry.weight_bytes), format_bytes(made.weight_bytes))
    recorded = entry.digests.get(made.kernels)
    shown.add_row("digest", "-" if recorded is None else recorded[:16], made.digest[:16])
    for machine, (dense, ms) in entry.milliseconds.items():
        here = (
            "-"
            if made.ms is None or made.dense_ms is None
            else f"{made.dense_ms:.2f} -> {made.ms:.2f}"
        )
        shown.add_row(f"ms, dense and this one ({machine})", f"{dense:.2f} -> {ms:.2f}", here)
    verdict = (
        "The weights are the recorded ones, byte for byte."
        if made.same_bytes
        else f"No digest is recorded for '{made.kernels}'; the score is within its tolerance."
    )
    document = {"name": name, "score": made.score, "weight_bytes": made.weight_bytes}
    more = {"digest": made.digest, "kernels": made.kernels, "same_bytes": made.same_bytes}
    times = {"ms_dense": made.dense_ms, "ms": made.ms, "out": str(target)}
    out.result({**document, **more, **times}, shown, verdict)


zoo = CommandGroup(
    "zoo",
    commands=[list_entries, make],
    short_help="Models that are made again here, and checked.",
    help="Models that anyone can make again, without a host: recipes with what they gave.",
)
