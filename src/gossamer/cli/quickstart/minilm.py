# SPDX-License-Identifier: Apache-2.0
"""The quickstart on a real sentence encoder: prune, measure, save, load, run."""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gossamer.cli.bench import int8_rival
from gossamer.cli.quickstart.minilm_model import MiniLM, embed, load_minilm
from gossamer.cli.quickstart.output import (
    MODEL_FOLDER,
    Story,
    compile_afresh,
    sparse_layers_text,
)
from gossamer.cli.quickstart.sentences import make_sentences
from gossamer.cli.shell import Output, ProgressStage
from gossamer.data.files import Texts
from gossamer.io import load
from gossamer.nn.batch import Batch
from gossamer.ops.timing import duel, one_thread
from gossamer.recipes import Calibration, Recipe, prune_recipe
from gossamer.report import Comparison, Figure, Page, Report, TextTable, describe_machine
from gossamer.running.layers import explain
from gossamer.runs import agreement, calibration_batches, directory_bytes, prune, tensor_bytes
from gossamer.search import (
    HEAD,
    Mask,
    SearchLimits,
    ShrinkResult,
    front_chart,
    rows_of,
    shrink,
    verdict,
)

_TARGETS = "encoder.layer.*"
_NUM_SENTENCES = 240
# Calibration: other sentences than those that are compared, from the same templates.
_NUM_CALIBRATION = 256
_LENGTH = 128
_BATCHES = (1, 8)
# The short form of shrink: what may be lost, what is tried, for how long.
SHRUNK_FOLDER = "shrunk"
_MAX_LOSS = 0.1
_MASKS = tuple(Mask("unstructured", sparsity) for sparsity in (0.7, 0.8))
_BUDGET_MINUTES = 1.5
_ABOUT = 0.01
_QUALITY = "agreement with dense (rank correlation)"
_WARNING = (
    "Agreement is not accuracy: it says how alike the two models order pairs of sentences. The"
    " pruned model was calibrated on other sentences from the same templates; expect less on text"
    " that is not like your calibration data."
)


@dataclass(frozen=True)
class _Bench:
    """The dense model and what others are compared with."""

    dense: MiniLM
    sentences: list[str]
    vectors: torch.Tensor
    calibration: list[Batch]

    def agreement(self, model: nn.Module) -> float:
        """Agreement of `model` with the dense one on the sentences."""
        return agreement(self.vectors, embed(model, self.dense.tokenizer, self.sentences))

    def floor(self) -> float:
        """Agreement of a model without encoder: the mean of the word embeddings alone."""
        words = self.dense.model.get_submodule("embeddings.word_embeddings")
        rows = []
        for sentence in self.sentences:
            ids = torch.tensor(self.dense.tokenizer.encode(sentence).ids)
            with torch.inference_mode():
                rows.append(nn.functional.normalize(words(ids).mean(0), dim=0))
        return agreement(self.vectors, torch.stack(rows))


def run_minilm(folder: Path, sparsity: float, out: Output) -> Story:
    """The whole story on MiniLM; raises ResourceError if the package is not installed."""
    with one_thread():
        return _run_minilm(folder, sparsity, out)


def _run_minilm(folder: Path, sparsity: float, out: Output) -> Story:
    with out.stage("loading MiniLM"):
        minilm = load_minilm()
    with out.stage(f"embedding {_NUM_SENTENCES} sentences with the dense model"):
        bench = _make_bench(minilm)
    with out.stage(f"pruning {sparsity:.0%}, saving and loading"):
        path = folder / MODEL_FOLDER
        report = prune(
            copy.deepcopy(minilm.model), _recipe(sparsity), data=bench.calibration, out=path
        )
        loaded = load(path)
    with out.stage("timing dense, pruned and dense int8"):
        fast = compile_afresh(loaded, tuple(batch * _LENGTH for batch in _BATCHES))
        comparison = _compare(bench, fast, folder)
    # Dense twice, masks, and what training there is time for.
    with out.stage("gossamer shrink, its short form", total=2 + len(_MASKS)) as stage:
        others = make_sentences(_NUM_SENTENCES + _NUM_CALIBRATION, _generator())[_NUM_SENTENCES:]
        found = _shrink(bench, others, folder, stage)
    return _tell(comparison, report, fast, found, bench.floor())


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _make_bench(minilm: MiniLM) -> _Bench:
    every = make_sentences(_NUM_SENTENCES + _NUM_CALIBRATION, _generator())
    sentences, others = every[:_NUM_SENTENCES], every[_NUM_SENTENCES:]
    samples = Texts(Path("sentences"), "", tuple(others))
    settings = Calibration(samples=len(others), tokens=_LENGTH)
    batches = calibration_batches(minilm.model, samples, minilm.tokenizer, settings)
    vectors = embed(minilm.model, minilm.tokenizer, sentences)
    return _Bench(minilm, sentences, vectors, batches)


def _recipe(sparsity: float) -> Recipe:
    """SparseGPT that aims at the dense model's outputs."""
    step = {"method": "sparsegpt", "match": "dense", "sparsity": sparsity, "targets": _TARGETS}
    return prune_recipe(step, "gossamer quickstart")


def _compare(bench: _Bench, fast: nn.Module, folder: Path) -> Comparison:
    dense = bench.dense.model
    rival = int8_rival.dense_int8(dense)
    scores = (1.0, bench.agreement(fast), None if rival is None else bench.agreement(rival))
    sizes = (
        tensor_bytes(bench.dense.directory),
        directory_bytes(folder / MODEL_FOLDER),
        None if rival is None else int8_rival.int8_bytes(dense),
    )
    figures = [Figure(_QUALITY, "score", scores), Figure("bytes on disk", "bytes", sizes)]
    for batch in _BATCHES:
        times = duel(_forward(dense, batch), _forward(fast, batch), budget_seconds=4.0)
        rival_ms = None
        if rival is not None:
            both = duel(_forward(fast, batch), _forward(rival, batch), budget_seconds=2.0)
            rival_ms = both.second_us / 1000
        values = (times.first_us / 1000, times.second_us / 1000, rival_ms)
        figures.append(Figure(f"ms, {batch} x {_LENGTH} tokens", "ms", values, times.doubt))
    return Comparison(("dense", "pruned", int8_rival.NAME), tuple(figures))


def _shrink(
    bench: _Bench, others: Sequence[str], folder: Path, stage: ProgressStage
) -> ShrinkResult:
    """`gossamer shrink` in its short form: two masks, and what there is time for."""
    texts = tuple(bench.sentences) + tuple(others)
    return shrink(
        bench.dense.model,
        Texts(Path("sentences"), "\n".join(texts), texts),
        folder / SHRUNK_FOLDER,
        tokenizer=bench.dense.tokenizer,
        max_loss=_MAX_LOSS,
        masks=_MASKS,
        budget_minutes=_BUDGET_MINUTES,
        on_trial=lambda trial: stage.advance(),
    )


def _forward(model: nn.Module, batch: int) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(1000, 20000, (batch, _LENGTH), generator=generator)

    def run(ids_BT: torch.Tensor) -> object:
        with torch.inference_mode():
            return model(input_ids=ids_BT)

    return functools.partial(run, ids_BT)


def _tell(
    comparison: Comparison,
    report: Report,
    fast: nn.Module,
    found: ShrinkResult,
    floor: float,
) -> Story:
    layers = explain(fast)
    limits = SearchLimits(_MAX_LOSS)
    rows = rows_of(found.points, found.chosen, found.front)
    table = TextTable(
        f"gossamer shrink: at most {_MAX_LOSS:.0%} of the agreement may be lost",
        HEAD,
        tuple(tuple(row) for row in rows),
        f"{verdict(found, limits)} For scale: the mean of the word embeddings, without any encoder,"
        f" agrees by {floor:.3f}. Given your data and more time, it also trains what it pruned.",
    )
    notes = (
        _WARNING,
        _rival_line(comparison),
        "The embeddings, about half of the bytes, are not pruned.",
        int8_rival.NOTE,
        "Times are of one thread. Sentences were made on the spot from templates.",
    )
    page = Page(
        title=f"gossamer quickstart: MiniLM, {report.sparsity:.0%} of the encoder pruned",
        lead="The sentence encoder all-MiniLM-L6-v2 was pruned without training, saved, loaded and"
        " run. Every number below was measured just now on one thread of this machine.",
        comparison=comparison,
        layers=layers,
        machine=describe_machine(),
        steps=(
            ("Loaded the dense model from the installed package.", "no download"),
            (
                f"Pruned {len(report.layers)} Linears of the encoder: SparseGPT on"
                f" {_NUM_CALIBRATION} sentences, aimed at the dense outputs.",
                f"{report.sparsity:.1%} of their weights, {report.global_sparsity:.1%} of all",
            ),
            ("Saved it packed, loaded it and compiled it.", sparse_layers_text(layers)),
            (f"Embedded {_NUM_SENTENCES} sentences with every model.", ""),
        ),
        tables=(table,),
        charts=[front_chart(found, limits)],
        notes=notes,
    )
    extra = {"shrink": found.to_dict(), "agreement_of_word_embeddings": floor}
    shrunk = f"gossamer shrink, short form: {verdict(found, limits)}"
    return Story(page, layers, extra, [_WARNING, _rival_line(comparison), shrunk])


def _rival_line(comparison: Comparison) -> str:
    """Whether plain dense int8 would have been the better choice."""
    _, pruned, rival = comparison.figures[0].values
    if pruned is None or rival is None:
        return "Dense int8, the rival, was not measured: this torch cannot build it."
    if rival <= pruned:
        return f"Dense int8 agrees less ({rival:.3f}) than the pruned model."
    if rival <= pruned + _ABOUT:
        return f"Dense int8 agrees about as well ({rival:.3f}); its time stands beside."
    return (
        f"Dense int8 agrees better ({rival:.3f}): at this sparsity the model is worth it only"
        " for its speed. Recovery training can change that; the tiny quickstart shows it."
    )
