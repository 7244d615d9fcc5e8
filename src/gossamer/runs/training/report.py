# SPDX-License-Identifier: Apache-2.0
"""What a training run gave: report, card and curves.

What goes into the artifact holds no times, so that a resumed run writes the same bytes; times stand
in metrics.jsonl and on the page beside it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gossamer.nn.layer_kinds import sparse_layers, title_of
from gossamer.nn.layers import SparseLayer
from gossamer.pruning import LayerResult
from gossamer.recipes import Recipe
from gossamer.report import (
    Card,
    Comparison,
    Figure,
    Page,
    Report,
    describe_machine,
    format_bytes,
    render_card,
    write_html,
)
from gossamer.runs.curves import Records, curves
from gossamer.runs.reporting import make_report
from gossamer.runs.training.stage import Trained

_NO_TIME = "The time of a forward pass was not measured; run 'gossamer explain' on the artifact."


def training_report(trained: Trained) -> Report:
    """The trained model beside its dense form."""
    model = trained.loop.model
    results = _layers(model)
    weights, kept = sum(r.numel for r in results), sum(r.nnz for r in results)
    parameters = sum(param.numel() for param in model.parameters())
    compact = sum(
        m.matrix_shape[0] * m.matrix_shape[1] - m.nnz for _, m in sparse_layers(model, "compact")
    )
    quality = next(iter(trained.loop.quality.values()), None)
    report = make_report(model, results, trained.dense_bytes, quality_sparse=quality)
    return replace(
        report,
        sparsity=1 - kept / weights if weights else 0.0,
        global_sparsity=(weights - kept) / max(parameters + compact, 1),
        notes=[*report.notes, _NO_TIME],
    )


def report_content(
    trained: Trained, report: Report, recipe: Recipe, records: Records
) -> dict[str, Any]:
    """report.json of the artifact: nothing in it depends on a clock."""
    loop = trained.loop
    names = ("step", "layers", "weights", "values", "bytes_before", "bytes_after", "modes")
    found = (record for record in records if record["kind"] == "compaction")
    compaction = next(({name: record[name] for name in names} for record in found), None)
    return {
        **report.to_dict(),
        "base": f"trained from scratch: {trained.task.name}",
        "recipe": recipe.model_dump(mode="json", exclude_none=True),
        "quality": dict(loop.quality),
        "training": {
            "steps": loop.step,
            "batches": loop.taken,
            "skipped": loop.skipped,
            "data": trained.task.digest,
            "compaction": compaction,
        },
        "machine": describe_machine(),
    }


def training_card(trained: Trained, report: Report, recipe: Recipe, name: str) -> str:
    """card.md of the artifact."""
    train = trained.loop.settings
    stage = recipe.stages[0].step.model_dump(mode="json", exclude_none=True)
    card = Card(
        title=name,
        base=f"a fresh model, {train.steps} steps on {trained.task.name}",
        method={key: str(value) for key, value in stage.items()},
        report=report,
        comparison=_comparison(trained, report),
        machine=describe_machine(),
        limits=("Quality was measured on held-out data of the same source.", *report.notes),
    )
    return render_card(card)


def write_page(trained: Trained, report: Report, records: Records, path: Path) -> Path:
    """report.html: loss, sparsity, memory and step time over the run."""
    loop = trained.loop
    quality = ", ".join(f"{name} {value:.4g}" for name, value in loop.quality.items())
    page = Page(
        title=f"Training: {trained.task.name}",
        lead=f"{loop.step} steps, {report.sparsity:.1%} zeros in {len(report.layers)} layers."
        f" {quality}",
        comparison=_comparison(trained, report),
        layers=(),
        machine=describe_machine(),
        curves=curves(records),
        notes=(*report.notes, *_traffic(records)),
    )
    return write_html(page, path)


def _traffic(records: Records) -> list[str]:
    """What the leading rank sends in a step, once masks are final."""
    found = [record for record in records if record["kind"] == "traffic"]
    parts = ", ".join(
        f"{format_bytes(count)} of {purpose}"
        for record in found[-1:]
        for purpose, count in record.items()
        if purpose not in ("kind", "step")
    )
    return [f"Rank 0 sends {parts} in every step."] if found else []


def _comparison(trained: Trained, report: Report) -> Comparison:
    scores = [Figure(name, "score", (None, value)) for name, value in trained.loop.quality.items()]
    size = Figure("bytes of tensors", "bytes", (report.bytes_dense, report.bytes_sparse))
    return Comparison(("dense", "trained"), (*scores, size))


def _layers(model: nn.Module) -> list[LayerResult]:
    """Every masked and compact weight once; tied layers are named beside it."""
    found: dict[int, list[tuple[str, SparseLayer]]] = {}
    for name, module in sparse_layers(model):
        found.setdefault(id(module.trained()), []).append((name, module))
    return [
        LayerResult(
            name=name,
            kind=title_of(module),
            shape=module.weight_shape,
            pattern=module.pattern,
            nnz=module.nnz,
            itemsize=module.trained().element_size(),
            tied=tuple(other for other, _ in twins),
            mask_digest=module.mask_digest(),
        )
        for (name, module), *twins in found.values()
    ]
