# SPDX-License-Identifier: Apache-2.0
"""The quickstart on a real sentence encoder: prune, measure, save, load, run.

Its sentences are plain English, made on the spot: varied enough to have similarities worth ranking.
Legend: N sentences, D width, B batch, T tokens.
"""

import copy
from dataclasses import asdict
from itertools import product
from pathlib import Path

import torch
from torch import nn

from gossamer.cli.models import demo_path
from gossamer.cli.quickstart.output import (
    INT8_FOLDER,
    MODEL_FOLDER,
    NOTE,
    Story,
    compare,
    compile_afresh,
    dense_int8,
    sparse_layers_text,
)
from gossamer.cli.quickstart.where import ZerosPay, try_zeros
from gossamer.cli.shell import Output
from gossamer.data.files import Texts
from gossamer.data.token_ids import sentences
from gossamer.errors import InputError
from gossamer.io import load, load_pretrained, read_beside
from gossamer.io.safe_files.tokenizer import TOKENIZER_FILE, make_tokenizer
from gossamer.recipes import Calibration, prune_recipe
from gossamer.report import Comparison, Page, Report
from gossamer.running.layers import explain
from gossamer.runs import prune
from gossamer.runs.calibration import agreement, calibration_batches, embed
from gossamer.runs.sources import tensor_bytes

# A topic per line: who; does; what.
_TOPICS = """
The chef, My grandmother, A hungry student, The new restaurant; cooked, served, tasted, burned;\
 a tomato soup, fresh bread, the chicken curry, an apple pie, fried rice
The striker, Our goalkeeper, The young team, A retired coach; won, watched, talked about, lost;\
 the cup final, a penalty shootout, the second half, the away game, the derby
The engineer, A software company, The intern, An open source group;\
 released, debugged, rewrote, tested;\
 the database driver, a web server, the compiler, a mobile app, the login page
The doctor, A nurse, The hospital, An anxious patient; described, treated, worried about, studied;\
 a broken arm, the flu, high blood pressure, a rare allergy, the new vaccine
The astronomer, A space probe, The science museum, My physics teacher;\
 observed, photographed, explained, discovered;\
 a distant galaxy, the rings of Saturn, a solar eclipse, a comet, black holes
The bank, An investor, The finance minister, A small shop; raised, feared, announced, calculated;\
 interest rates, the new tax, a quarterly loss, the price of oil, a bonus
"""
_TAILS = (
    "",
    " yesterday",
    " last summer",
    " in the rain",
    " for the first time",
    " with great care",
)


def make_sentences(count: int, generator: torch.Generator) -> list[str]:
    """`count` different sentences on a few topics, drawn from `generator`."""
    every = [
        f"{' '.join(words)}{tail}."
        for topic in _TOPICS.strip().splitlines()
        for *words, tail in product(*(part.split(", ") for part in topic.split("; ")), _TAILS)
    ]
    if not 1 <= count <= len(every):
        raise InputError(f"sentences: expected 1 to {len(every)}, got {count}.")
    order = torch.randperm(len(every), generator=generator)[:count]
    return [every[index] for index in order.tolist()]


_TARGETS = "encoder.layer.*"
_NUM_SENTENCES = 240
# Calibration: other sentences than those that are compared, from the same templates.
_NUM_CALIBRATION = 256
_LENGTH = 128
_BATCHES = (1, 8)
# Of the layer that shows where zeros pay: the first of an MLP.
_TRIED = (1536, 384)
_ABOUT = 0.01
_WARNING = (
    "Agreement is not accuracy: it says how alike the two models order pairs of sentences. The"
    " pruned model was calibrated on other sentences from the same templates; expect less on text"
    " that is not like your calibration data."
)
_SEARCH = (
    "What to take for your data: gossamer shrink demo:minilm --data YOUR_FILE --max-loss 1% tries"
    " dense int8, masks, recovery and slim models."
)


def run_minilm(folder: Path, sparsity: float, out: Output) -> Story:
    """The whole story on MiniLM; raises ResourceError if the package is not installed."""
    with out.stage("loading MiniLM"):
        # Inside the installed package; nothing is downloaded.
        directory = demo_path("minilm")
        dense = load_pretrained(directory)
        tokenizer = make_tokenizer(read_beside(directory).get(TOKENIZER_FILE))
    generator = torch.Generator().manual_seed(0)
    texts = tuple(make_sentences(_NUM_SENTENCES + _NUM_CALIBRATION, generator))
    with out.stage(f"embedding {_NUM_SENTENCES} sentences with the dense model"):
        others = Texts(Path("sentences"), "", texts[_NUM_SENTENCES:])
        settings = Calibration(samples=len(others.texts), tokens=_LENGTH)
        calibration = calibration_batches(dense, others, tokenizer, settings)
        ids = sentences(texts[:_NUM_SENTENCES], tokenizer, _LENGTH)
        vectors_ND = embed(dense, ids)

    def agrees(model: nn.Module) -> float:
        """Agreement of `model` with the dense one on the sentences."""
        return agreement(vectors_ND, embed(model, ids))

    with out.stage(f"pruning {sparsity:.0%}, saving and loading"):
        path = folder / MODEL_FOLDER
        # SparseGPT that aims at the dense model's outputs.
        step = {"method": "sparsegpt", "match": "dense", "sparsity": sparsity, "targets": _TARGETS}
        recipe = prune_recipe(step, "gossamer quickstart")
        report = prune(copy.deepcopy(dense), recipe, data=calibration, out=path)
        loaded = load(path)
    with out.stage("timing dense, pruned and dense int8"):
        tokens = tuple(batch * _LENGTH for batch in _BATCHES)
        fast = compile_afresh(loaded, tokens)
        rival = dense_int8(dense, folder / INT8_FOLDER, tokens)
        ids_BT = torch.randint(1000, 20000, (max(_BATCHES), _LENGTH), generator=generator)
        comparison = compare(
            (dense, fast, rival),
            ("agreement with dense (rank correlation)", 1.0, agrees),
            (tensor_bytes(directory), tensor_bytes(path), tensor_bytes(folder / INT8_FOLDER)),
            {f"{batch} x {_LENGTH} tokens": ids_BT[:batch] for batch in _BATCHES},
            5.0,
        )
    with out.stage("timing one layer with more and more zeros"):
        zeros = try_zeros(_TRIED, _LENGTH)
    # A model without encoder: the mean of the word embeddings alone.
    words = dense.get_submodule("embeddings.word_embeddings")
    with torch.inference_mode():
        rows = [nn.functional.normalize(words(each).mean(0), dim=0) for each in ids]
    floor = agreement(vectors_ND, torch.stack(rows))
    return _tell(comparison, report, fast, zeros, floor)


def _tell(
    comparison: Comparison, report: Report, fast: nn.Module, zeros: ZerosPay, floor: float
) -> Story:
    layers, rival = explain(fast), _rival_line(comparison)
    page = Page(
        title=f"gossamer quickstart: MiniLM, {report.sparsity:.0%} of the encoder pruned",
        lead="The sentence encoder all-MiniLM-L6-v2 was pruned without training, saved, loaded and"
        " run. Every number below was measured just now on one thread of this machine.",
        comparison=comparison,
        layers=layers,
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
        tables=(zeros.table(),),
        notes=(
            _WARNING,
            rival,
            f"For scale: the mean of word embeddings, without an encoder, agrees by {floor:.3f}.",
            _SEARCH,
            "The embeddings, about half of the bytes, are not pruned.",
            NOTE,
            "Times are of one thread. Sentences were made on the spot from templates.",
        ),
    )
    return Story(
        page,
        {"where_zeros_pay": asdict(zeros), "agreement_of_word_embeddings": floor},
        [_WARNING, rival, zeros.sentence(), _SEARCH],
    )


def _rival_line(comparison: Comparison) -> str:
    """Whether plain dense int8 would have been the better choice."""
    _, pruned, rival = (value or 0.0 for value in comparison.figures[0].values)
    if rival <= pruned:
        return f"Dense int8 agrees less ({rival:.3f}) than the pruned model."
    if rival <= pruned + _ABOUT:
        return f"Dense int8 agrees about as well ({rival:.3f}); the table has its time."
    return (
        f"Dense int8 agrees better ({rival:.3f}): at this sparsity the model is worth it only"
        " for its speed. Recovery training can change that; the tiny quickstart shows it."
    )
