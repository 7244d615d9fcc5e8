# SPDX-License-Identifier: Apache-2.0
"""`gossamer run score`: rows of a click log to chances of a click."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from click import argument, option

from gossamer.cli.options import PATH, precision_option, threads_option
from gossamer.cli.shell import Output, gossamer_command, table

_EXAMPLES = """
gossamer run score trained/ today.tsv -o chances.txt
gossamer run score trained/ rows.jsonl --precision int8
gossamer run score trained/ today.csv | sort -gr | head
"""


@gossamer_command("Rows of a file to chances of a click.", _EXAMPLES)
@argument("model")
@argument("file", type=PATH)
@option(
    "-o", "--out", "target", type=PATH, help="A text file, one chance per line.  [default: stdout]"
)
@precision_option
@threads_option
def score(
    out: Output,
    /,
    model: str,
    file: Path,
    target: Path | None,
    precision: str,
) -> None:
    """One chance of a click for every row of FILE, in its order.

    MODEL is an artifact of 'gossamer train' for task clicks. FILE is a .tsv, .csv, .txt or .jsonl
    with the columns that the model was trained with; a label is not needed. Rows are read with the
    vocabularies and statistics of the artifact. One that cannot be read is an error, and no file is
    written.
    """
    import torch

    from gossamer.cli.models import check_source, load_source
    from gossamer.io.artifact.destination import check_file_destination
    from gossamer.running.clicks import ClickScorer
    from gossamer.running.layers import compile as compile_model

    if target is not None:
        check_file_destination(target, makes_parents=False)
    check_source(model)
    with out.stage("loading"):
        source = load_source(model, say=out.note)
        ClickScorer(source.model, source.beside, source.name)
    with out.stage("choosing kernels"):
        fast = compile_model(source.model, tokens=(1, 1024), inplace=True, precision=precision)
        scorer = ClickScorer(fast, source.beside, source.name)
    kept: list[float] = []
    count = 0
    with out.stage("scoring"), _written(target, out) as written:
        start = time.perf_counter()
        for chances in scorer.score_file(file):
            count += len(chances)
            if written is None:
                kept += chances.tolist()
            else:
                # Nine digits give every float32 back.
                written.writelines(f"{chance:.9g}\n" for chance in chances.tolist())
        seconds = time.perf_counter() - start
    document: dict[str, Any] = {
        "model": source.name,
        "rows": count,
        "seconds": seconds,
        "rows_per_second": count / seconds,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "file": target,
    }
    rate = f"{count / seconds:.0f}"
    if target is None:
        out.note(f"{count} rows, {rate} rows/s")
        out.result(document | ({"chances": kept} if out.json else {}))
    else:
        shown = table(">rows", ">seconds", ">rows/s", rows=[(f"{count}", f"{seconds:.2f}", rate)])
        out.result(document, shown, f"{target}: {count} chances, {precision}.")


@contextmanager
def _written(target: Path | None, out: Output) -> Iterator[TextIO | None]:
    """Where lines go: a file that appears whole, stdout, or nowhere for --json."""
    if target is None:
        yield None if out.json else sys.stdout
        return
    from gossamer.io.safe_files.directories import whole_file

    with whole_file(target, "x", "ascii") as file:
        yield file
