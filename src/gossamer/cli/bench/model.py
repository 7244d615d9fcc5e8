# SPDX-License-Identifier: Apache-2.0
"""`gossamer bench model`: a user's encoder here, in torch, and in other engines."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gossamer.cli.shell import POSITIVE, Output, gossamer_command, table

if TYPE_CHECKING:
    from gossamer.cli.bench.encoder_race import Subject
    from gossamer.running.bench import EncoderTime

ENGINES = ("onnxruntime", "openvino", "deepsparse")
_PRECISIONS = ("fp32", "int8")

_EXAMPLES = """
gossamer bench model pruned/
gossamer bench model pruned/ --batch 1 --batch 8 --precision int8
gossamer bench model demo:minilm --against onnxruntime --peers build/peers
"""


@gossamer_command("A whole encoder.", _EXAMPLES, "model")
@click.argument("model")
@click.option(
    "--against",
    type=click.Choice(ENGINES),
    multiple=True,
    default=ENGINES,
    show_default="those that are installed",
    help="Another engine to race; may be repeated. torch always takes part.",
)
@click.option(
    "--batch", type=POSITIVE, multiple=True, default=(1, 8), show_default="1, 8", help="Sequences."
)
@click.option("--sequence", type=POSITIVE, default=128, help="Tokens of each.")
@click.option("--threads", type=POSITIVE, default=1)
@click.option(
    "--precision",
    "precisions",
    type=click.Choice(_PRECISIONS),
    multiple=True,
    default=_PRECISIONS,
    show_default="fp32, int8",
    help="Products are computed in; may be repeated.",
)
@click.option(
    "--peers",
    type=click.Path(path_type=Path, file_okay=False),
    help="Environments of other engines, DIR/NAME each; default: GOSSAMER_PEERS.",
)
@click.option("--seconds", type=click.FloatRange(min=0), default=5.0)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Also write a page.")
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
    from gossamer.io.artifact import check_file_destination
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
        _write_page(subject, times, document, html)
        document["html"] = str(html)
    shown = table(
        *("batch", "engine", "precision", ">ms", ">speed-up", ">error"),
        rows=(
            (
                *(str(size), row.engine, row.precision),
                *(f"{row.ms:.2f}", f"{rows[0].ms / row.ms:.2f}x", f"{row.error:.0e}"),
            )
            for size, rows in times.items()
            for row in rows
        ),
    )
    out.result(document, shown, _legend(subject, threads, document))


def _legend(subject: "Subject", threads: int, document: dict[str, Any]) -> str:
    text = (
        f"{subject.name}: {subject.sparsity:.1%} of the weights of its layers are zero."
        f" {document['sequence']} tokens per sequence, {threads} thread(s). error: largest"
        " difference to torch fp32 over its largest value."
    )
    if document["missing"]:
        text += f" Not installed: {', '.join(document['missing'])}."
    doubts = sorted({row["doubt"] for row in document["rows"] if row["doubt"]})
    return "\n".join([text, *document["refused"], *(f"{d}. Do not quote this." for d in doubts)])


def _write_page(
    subject: "Subject", times: "dict[int, list[EncoderTime]]", document: dict[str, Any], path: Path
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
            title=f"{subject.name}: {subject.sparsity:.0%} zeros, raced",
            lead=f"From token ids to the last hidden state, {document['sequence']} tokens per"
            " sequence. Zeros are in every engine's weights; those without sparse kernels multiply"
            " them.",
            comparison=Comparison(tuple(f"{e} {p}" for e, p in shown), tuple(figures)),
            layers=(),
            machine={**document["machine"], "engines": versions or "none"},
            notes=(
                *(f"Not installed: {name}." for name in document["missing"]),
                *document["refused"],
            ),
        ),
        path,
    )
