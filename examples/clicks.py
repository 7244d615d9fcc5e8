"""Train a model on a generated click log, compare it with the best possible one, score rows."""

import tempfile
from pathlib import Path

import torch

import gossamer
from gossamer.io import load, read_beside
from gossamer.running.clicks import ClickScorer
from gossamer.zoo.problems import click_problem, write_criteo

log = click_problem(torch.Generator().manual_seed(0), num_rows=20_000)

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    write_criteo(log, folder / "log.tsv")  # label, 13 numbers, 26 categories
    result = gossamer.train(
        "train-clicks", folder / "log.tsv", out=folder / "model", overrides=["steps=300"]
    )
    for figure, value in result.quality.items():
        print(f"{figure:24} {value:.4f}")
    print(f"{'AUC of the true chances':24} {log.bayes_auc():.4f}")

    # The artifact reads rows as they were read in training.
    scorer = ClickScorer(load(result.path), read_beside(result.path), "model")
    chances = torch.cat(list(scorer.score_file(folder / "log.tsv")))

order = chances.argsort(descending=True)
top, rest = log.labels[order[:2000]].float().mean(), log.labels.float().mean()
print(f"clicks among the 2,000 likeliest rows: {top:.1%}; among all: {rest:.1%}")
