# SPDX-License-Identifier: Apache-2.0
"""`gossamer plan`: what training would cost on a described cluster; nothing is run."""

from pathlib import Path
from typing import Any

from click import Choice, UsageError, argument, option

from gossamer.cli.options import PATH, POSITIVE, SPARSITY, set_option
from gossamer.cli.shell import Output, Verbatim, gossamer_command, table
from gossamer.planner.pipeline_orders import SCHEDULES

_EXAMPLES = """
gossamer plan gpt3-13b --cluster summit --ranks 1024 --batch 2048
gossamer plan train-gpt --cluster workstations --set sparsity=0.95
gossamer plan my-recipe.yaml --cluster mine.yaml --out plan.html
gossamer plan pruned/ --cluster dgx-like --batch 256 --json
gossamer plan --calibrate mine.yaml
gossamer plan --staged 774M --staged 13B
gossamer plan gpt3-13b --keys 128000
"""
_STATES = ("dense, mixed precision", "samo", "resident", "exact", "8bit", "dense fp32", "fp32")


@gossamer_command("Memory, time and traffic on a cluster, forecast.", _EXAMPLES)
@argument("source", metavar="RECIPE_OR_MODEL", required=False)
@option(
    "--cluster",
    default="workstations",
    metavar="NAME|FILE",
    help="summit, dgx-like, workstations, or a file.",
)
@option("--batch", type=POSITIVE, help="Samples of a step over all ranks.")
@option("--microbatch", type=POSITIVE, help="Samples in a pipeline; default: the best.")
@option("--sparsity", type=SPARSITY, help="Of pruned weights; default: recipe's, or 0.9.")
@option("--tokens", type=POSITIVE, help="Of a sample, where the model leaves it open.")
@option("--ranks", type=POSITIVE, help="Use so many; default: all.")
@option("--state", "states", multiple=True, type=Choice(_STATES), help="Repeatable.")
@option(
    "--schedule",
    "schedules",
    multiple=True,
    type=Choice(SCHEDULES),
    help="Of pipelines; repeatable. Default: 1f1b, interleaved and zero-bubble.",
)
@option("--data", metavar="DATA", help="Sizes for recipes on images or labels, as in train.")
@set_option
@option("--out", "target", type=PATH, help="Also write a report: plan.html.")
@option(
    "--calibrate",
    type=PATH,
    metavar="FILE",
    help="Measure this machine and write it as a cluster to FILE.",
)
@option(
    "--staged",
    multiple=True,
    metavar="SIZE",
    help="What growing a language model of SIZE (774M, 13B) would save; repeatable.",
)
@option(
    "--keys",
    type=POSITIVE,
    metavar="TOKENS",
    help="Instead: memory of keys and values while a decoder reads so many tokens.",
)
def plan(
    out: Output,
    /,
    source: str | None,
    cluster: str,
    target: Path | None,
    calibrate: Path | None,
    staged: tuple[str, ...],
    keys: int | None,
    **settings: Any,
) -> None:
    """Compare every grid of data, pipeline and shard ranks for dense, SAMO and compact training.

    RECIPE_OR_MODEL is a recipe with a train stage, an artifact, a Hugging Face directory (weights
    are not needed) or gpt3-xl, gpt3-2.7b, gpt3-6.7b, gpt3-13b. A cluster file says nodes, memory,
    FLOP/s and links; start from one that --calibrate writes.
    """
    from gossamer.planner import load_cluster

    if calibrate is not None:
        _calibrate(out, calibrate)
        return
    if staged:
        _staged(out, staged)
        return
    if source is None:
        raise UsageError("RECIPE_OR_MODEL is missing, or --calibrate FILE, or --staged SIZE.")
    if keys is not None:
        _keys(out, source, keys)
        return
    # Before torch is loaded: faults of the file are told at once.
    described_cluster = load_cluster(cluster)
    from gossamer.io.artifact.destination import check_file_destination
    from gossamer.planner import plan as make_plan
    from gossamer.planner.explaining import FORECAST, plan_page, plan_table, reasons

    if target is not None:
        check_file_destination(target)
    made = make_plan(source, described_cluster, **settings)
    head, rows = plan_table(made)
    why = reasons(made)
    document = {**made.to_dict(), "reasons": why}
    if target is not None:
        from gossamer.report import write_html

        document["report"] = str(write_html(plan_page(made, Path(cluster).stem), target))
        out.note(f"report: {target}")
    out.result(document, table(*head, rows=rows), "\n".join([*why, FORECAST]))


def _keys(out: Output, source: str, tokens: int) -> None:
    from gossamer.planner.model_shape import NAMED_SHAPES
    from gossamer.report import format_bytes
    from gossamer.running.decoder.key_memory import KeySizes, key_memory

    if source in NAMED_SHAPES:
        shape = NAMED_SHAPES[source]
        sizes = KeySizes(shape.layers, shape.heads, shape.width // shape.heads)
    else:
        from gossamer.errors import InputError
        from gossamer.io.loading import load_skeleton

        if not Path(source).exists():
            raise InputError(
                f"{source}: there is no such directory. Expected an artifact, a Hugging Face"
                f" directory or one of {', '.join(NAMED_SHAPES)}."
            )
        model, _ = load_skeleton(source)
        sizes = KeySizes.of_config(getattr(model, "config", None), source)
    found = key_memory(sizes, tokens)
    rows = [
        (
            memory.attention,
            memory.keys,
            format_bytes(memory.size),
            f"{memory.per_token:.0f}" if memory.per_token else "bounded",
        )
        for memory in found
    ]
    shown = table("--attention", "--kv", ">one sequence", ">bytes of a token", rows=rows)
    document = {"source": source, "tokens": tokens, "keys": [vars(memory) for memory in found]}
    out.result(
        document, shown, f"{tokens} tokens of one sequence in the native decoder; nothing was run."
    )


def _staged(out: Output, sizes: tuple[str, ...]) -> None:
    from gossamer.planner.explaining import FORECAST
    from gossamer.planner.staged import kaplan_forecasts

    rows, document = [], []
    for text in sizes:
        parameters = _size(text)
        for name, made in kaplan_forecasts(parameters).items():
            document.append({"parameters": parameters, "grow": name, **vars(made), "rho": made.rho})
            rows.append(
                [
                    text,
                    f"half the {name}",
                    f"{made.loss:.3f}",
                    f"{made.steps_before:,.0f}",
                    f"{made.steps_target:,.0f} of {made.steps_after:,.0f}",
                    f"{made.saving:.1%}",
                ]
            )
    head = (
        "model",
        "train first",
        "grow at loss",
        "after steps",
        "goes on at step",
        "compute saved",
    )
    law = "From the scaling law of arXiv 2001.08361 and the slopes of arXiv 2203.06211; nothing was"
    shown = table(*head, rows=rows)
    out.result({"staged": document}, shown, f"{law} measured here.\n{FORECAST}")


def _size(text: str) -> float:
    units = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        size = float(number) * unit
    except ValueError:
        size = 0.0
    if not 1e4 <= size <= 1e14:
        raise UsageError(f"--staged {text}: expected a number of parameters, such as 774M.")
    return size


def _calibrate(out: Output, target: Path) -> None:
    from gossamer.errors import InputError

    if target.exists():
        raise InputError(f"{target}: exists already and is not overwritten. Name another file.")
    from gossamer.io.artifact.destination import check_file_destination

    check_file_destination(target, makes_parents=False)
    from gossamer.planner import calibrate, cluster_text

    with out.stage("measuring this machine"):
        measured = calibrate()
    text = cluster_text(measured)
    target.write_text(text, encoding="utf-8")
    out.result({"file": str(target), "cluster": measured.model_dump(by_alias=True)}, Verbatim(text))
