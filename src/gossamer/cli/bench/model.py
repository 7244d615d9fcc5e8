# SPDX-License-Identifier: Apache-2.0
"""`gossamer bench model`: a user's encoder here, in torch, and in other engines."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import Choice, FloatRange, argument, option

from gossamer.cli.options import POSITIVE
from gossamer.cli.shell import Output, gossamer_command, table

if TYPE_CHECKING:
    from gossamer.running.bench import EncoderTime

ENGINES = ("onnxruntime", "openvino", "deepsparse")
_PRECISIONS = ("fp32", "int8")

_EXAMPLES = """
gossamer bench model pruned/
gossamer bench model pruned/ --batch 1 --batch 8 --precision int8
gossamer bench model demo:minilm --against onnxruntime --peers build/peers
"""


@gossamer_command("A whole encoder.", _EXAMPLES, "model")
@argument("model")
@option(
    "--against",
    type=Choice(ENGINES),
    multiple=True,
    default=ENGINES,
    show_default="those that are installed",
    help="Another engine to race; may be repeated. torch always takes part.",
)
@option("--batch", type=POSITIVE, multiple=True, default=(1, 8), help="Sequences.")
@option("--sequence", type=POSITIVE, default=128, help="Tokens of each.")
@option("--threads", type=POSITIVE, default=1)
@option(
    "--precision",
    "precisions",
    type=Choice(_PRECISIONS),
    multiple=True,
    default=_PRECISIONS,
    help="Products are computed in; may be repeated.",
)
@option(
    "--peers",
    type=click.Path(path_type=Path, file_okay=False),
    help="Environments of other engines, DIR/NAME each; default: GOSSAMER_PEERS.",
)
@option("--seconds", type=FloatRange(min=0), default=5.0)
@option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page.")
def bench_model(  # noqa: PLR0913  (one argument per option)
    out: Output,
    model: str,
    against: tuple[str, ...],
    batch: tuple[int, ...],
    sequence: int,
    threads: int,
    precisions: tuple[str, ...],
    peers: Path | None,
    seconds: float,
    html: Path | None,
) -> None:
    """Race an encoder from token ids to its last hidden state: torch, gossamer, other engines.

    MODEL is an artifact, a local Hugging Face directory (zeros of other pruners count) or
    demo:minilm, of the families BERT, RoBERTa or DistilBERT. Other engines run in their own
    environment if there is one, else in this one; what is not installed is left out. Ids are
    random and nothing is padding. All take turns, the best time of each counts.
    """
    import torch

    from gossamer.cli.bench.encoder_race import race_batch, read_subject
    from gossamer.io.artifact.destination import check_file_destination
    from gossamer.report import describe_machine
    from gossamer.running.rivals import TITLES, EncoderEngine, find_engine

    if html is not None:
        check_file_destination(html)
    torch.set_num_threads(threads)
    with out.stage("loading"):
        subject = read_subject(model, sequence)
    found = {name: find_engine(name, peers) for name in against}
    missing = [TITLES[name] for name, python in found.items() if python is None]
    refusals: list[str] = []
    times: dict[int, list[EncoderTime]] = {}
    with ExitStack() as stack:
        engines = [
            stack.enter_context(EncoderEngine(name, python, threads))
            for name, python in found.items()
            if python is not None
        ]
        with out.stage("racing", total=len(batch)) as stage:
            for size in batch:
                times[size], refused = race_batch(subject, size, precisions, engines, seconds)
                refusals += refused
                stage.advance()
        versions = {engine.title: engine.version for engine in engines}
    document: dict[str, Any] = {
        "model": subject.name,
        "sparsity": subject.sparsity,
        "sequence": sequence,
        "versions": versions,
        "missing": missing,
        "refused": refusals,
        "rows": [{"batch": size, **row.to_dict()} for size in batch for row in times[size]],
        "machine": describe_machine(),
    }
    if html is not None:
        _write_page(times, document, html)
        document["html"] = str(html)
    shown = table(
        "batch",
        "engine",
        "precision",
        ">ms",
        ">speed-up",
        ">error",
        rows=(
            (
                str(size),
                row.engine,
                row.precision,
                f"{row.ms:.2f}",
                f"{rows[0].ms / row.ms:.2f}x",
                f"{row.error:.0e}",
            )
            for size, rows in times.items()
            for row in rows
        ),
    )
    legend = (
        f"{subject.name}: {subject.sparsity:.1%} of the weights of its layers are zero. {sequence}"
        f" tokens per sequence, {threads} thread(s). error: largest difference to torch fp32 over"
        " its largest value."
    )
    if missing:
        legend += f" Not installed: {', '.join(missing)}."
    doubts = sorted({row.doubt for rows in times.values() for row in rows if row.doubt})
    notes = [*refusals, *(f"{doubt}. Do not quote this." for doubt in doubts)]
    out.result(document, shown, "\n".join([legend, *notes]))


def _write_page(
    times: "dict[int, list[EncoderTime]]", document: dict[str, Any], path: Path
) -> None:
    from gossamer.report import Comparison, Figure, Page, write_html

    # An engine that refused one batch has no column, rather than a gap that reads as a result.
    tables = {
        size: {(row.engine, row.precision): row for row in rows} for size, rows in times.items()
    }
    shown = [
        key for key in next(iter(tables.values())) if all(key in rows for rows in tables.values())
    ]
    figures = [
        Figure(
            f"batch {size}, ms",
            "ms",
            tuple(tables[size][key].ms for key in shown),
            rows[0].doubt,
        )
        for size, rows in times.items()
    ]
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    write_html(
        Page(
            title=f"{document['model']}: {document['sparsity']:.0%} zeros, raced",
            lead=f"From token ids to the last hidden state, {document['sequence']} tokens per"
            " sequence. Zeros are in every engine's weights; those without sparse kernels multiply"
            " them.",
            comparison=Comparison(tuple(f"{e} {p}" for e, p in shown), tuple(figures)),
            machine={**document["machine"], "engines": versions or "none"},
            notes=(
                *(f"Not installed: {name}." for name in document["missing"]),
                *document["refused"],
            ),
        ),
        path,
    )
