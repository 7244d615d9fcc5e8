# SPDX-License-Identifier: Apache-2.0
"""`gossamer explain`: what would run each layer here, and why."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import Choice, argument, option

from gossamer.cli.options import POSITIVE
from gossamer.cli.shell import Output, gossamer_command, table
from gossamer.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from gossamer.running.layers import LayerTimes

_EXAMPLES = """
gossamer explain pruned/
gossamer explain pruned/ --tokens 1 --tokens 512
gossamer explain pruned/ --precision int8
gossamer explain pruned/ --profile --html layers.html
gossamer explain pruned/ --json
"""


@gossamer_command("Which kernel runs each layer, and why.", _EXAMPLES)
@argument("model")
@option(
    "--tokens",
    type=POSITIVE,
    multiple=True,
    default=(1, 128),
    help="Activation rows (batch x sequence) to time; may be repeated.",
)
@option(
    "--precision",
    type=Choice(["fp32", "bf16", "int8", "int4"]),
    default="fp32",
    help="Lowest precision that kernels may compute in.",
)
@option("--kernel", help="Force this kernel wherever it accepts a layer.")
@option("--profile", is_flag=True, help="Also time every layer inside a whole forward.")
@option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the profile as a page with bars; needs --profile.",
)
def explain(
    out: Output,
    model: str,
    tokens: tuple[int, ...],
    precision: str,
    kernel: str | None,
    profile: bool,
    html: Path | None,
) -> None:
    """Time every pruned layer of MODEL against dense, and say which kernel runs it and why.

    MODEL is a gossamer artifact, a local Hugging Face directory or ONNX file (zeros of other
    pruners count) or zoo:NAME. The answer to "I pruned it, why is it not faster?".
    """
    if html is not None and not profile:
        raise InputError("--html: is the page of a profile; give --profile, too.")
    from gossamer.cli.models import load_source
    from gossamer.io.artifact.destination import check_file_destination
    from gossamer.nn.prunable import left_lines
    from gossamer.ops.fallback import fallbacks
    from gossamer.report import describe_machine
    from gossamer.running.layers import compile as compile_model
    from gossamer.running.layers import explain as explain_model
    from gossamer.runs import example_input

    if html is not None:
        check_file_destination(html)
    with out.stage("loading"):
        source = load_source(model, say=out.note)
        example = example_input(source.model, max(tokens))
    with out.stage("timing layers"):
        fast = compile_model(
            source.model,
            tokens=tokens,
            inplace=not profile,
            precision=precision,
            kernel=kernel,
            example=None if example is None else example.for_compile,
        )
        rows = explain_model(fast)
    document: dict[str, Any] = {
        "model": source.name,
        "layers": rows.to_dicts(),
        "left_dense": [asdict(row) for row in rows.left_dense],
        "fallbacks": fallbacks(),
        "machine": describe_machine(),
    }
    shown = table(
        "layer",
        "shape",
        ">sparsity",
        "pattern",
        "kernel",
        ">tokens",
        ">dense us",
        ">sparse us",
        "why",
        rows=(
            (
                row.name,
                "x".join(map(str, row.shape)) or "-",
                f"{1 - row.density:.1%}",
                row.pattern,
                row.kernel,
                "-" if row.tokens is None else str(row.tokens),
                *("-" if us is None else f"{us:.0f}" for us in (row.dense_us, row.sparse_us)),
                row.reason,
            )
            for row in rows
        ),
    )
    names = {row.name for row in rows if row.shape}
    sparse = {row.name for row in rows if row.is_sparse}
    said = f"{len(sparse)} of {len(names)} layers run on sparse kernels for some token count."
    if not names:
        said = "The model has no Linear or Conv2d layer, so there is nothing to speed up."
    elif not sparse:
        said = (
            "No layer runs on a sparse kernel: no speed-up is to be expected. See the column 'why'."
        )
    parts: list[Any] = [shown, said, *left_lines(rows.left_dense)]
    if profile:
        if example is None:
            raise InputError(f"--profile: no input can be made up for {source.name}.")
        from gossamer.running.bench import dense_copy
        from gossamer.running.layers import layer_times

        with out.stage("timing whole forwards"):
            # Of the compiled model and of the model it came from, without sparse kernels.
            dense = dense_copy(source.model)
            times = layer_times(fast, dense, lambda net: net(*example.args, **example.kwargs))
        document["profile"] = times.to_dict()
        parts += [_profile_table(times), f"One forward of {example.text}."]
        if html is not None:
            from gossamer.report import Comparison, Figure, Page, write_html
            from gossamer.report.charts import layer_bars

            whole = Figure("whole forward, ms", "ms", (times.dense_ms, times.sparse_ms))
            write_html(
                Page(
                    title=f"{source.name}: where the time goes",
                    lead=f"One forward of {example.text}: the best time of every layer inside it.",
                    comparison=Comparison(("dense", "sparse"), (whole,)),
                    layers=rows,
                    machine=document["machine"],
                    charts=(layer_bars(times),),
                ),
                html,
            )
            document["html"] = str(html)
    out.result(document, *parts)


def _profile_table(times: "LayerTimes") -> "Table":
    """Layers, their sum, attention, what lies between them, the whole forward, and their shares."""
    dense, sparse, attention = times.dense_sum_ms, times.sparse_sum_ms, times.attention
    both = attention.dense_ms, attention.sparse_ms
    between = (
        max(times.dense_ms - dense - (both[0] or 0.0), 0.0),
        max(times.sparse_ms - sparse - (both[1] or 0.0), 0.0),
    )
    rows = [
        *((layer.name, layer.dense_ms, layer.sparse_ms) for layer in times.layers),
        ("all layers", dense, sparse),
        *([("attention without its layers", *both)] if any(both) else []),
        ("between them", *between),
        ("whole forward", times.dense_ms, times.sparse_ms),
    ]
    return table(
        "layer",
        ">dense ms",
        ">sparse ms",
        ">speed-up",
        ">of dense",
        ">of sparse",
        rows=((name, *_cells(dense, sparse, times)) for name, dense, sparse in rows),
    )


def _cells(dense: float | None, sparse: float | None, times: "LayerTimes") -> list[str]:
    texts = ["-" if ms is None else f"{ms:.3f}" for ms in (dense, sparse)]
    wholes = (dense, times.dense_ms), (sparse, times.sparse_ms)
    shares = ["-" if ms is None else f"{ms / whole:.0%}" for ms, whole in wholes]
    return [*texts, f"{dense / sparse:.2f}x" if dense and sparse else "-", *shares]
