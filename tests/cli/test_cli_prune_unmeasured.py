# SPDX-License-Identifier: Apache-2.0
"""`gossamer prune` without data says that nobody measured what the model can still do."""

import json

import torch
from torch import nn

from gossamer.cli.main import main


def words(captured) -> str:
    return " ".join((captured.out + captured.err).split())


def test_without_data_the_screen_card_and_report_say_that_quality_is_unknown(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["prune", "zoo:mlp", "-o", str(out), "--sparsity", "0.8", "--tokens", "4"]) == 0
    shown = words(capsys.readouterr())
    assert "Quality: not measured." in shown
    assert "--data FILE" in shown
    assert "gossamer shrink MODEL --data FILE" in shown
    card = (out / "card.md").read_text()
    assert "Quality: not measured." in card
    report = json.loads((out / "report.json").read_text())
    assert report["quality_measured"] is False


def recurrent() -> nn.Module:
    """For the command line: most weights are where no mask reaches."""
    torch.manual_seed(0)
    return nn.ModuleDict({"fc": nn.Linear(16, 16), "rnn": nn.LSTM(16, 16)})


def test_prune_and_explain_name_what_stays_dense(tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(__file__.rsplit("/", 1)[0])
    source, out = "test_cli_prune_unmeasured:recurrent", tmp_path / "out"
    line = "83.7% of the weights are in LSTM, which cannot be pruned: rnn.weight_ih_l0"
    assert main(["prune", source, "-o", str(out), "--sparsity", "0.8", "--tokens", "4"]) == 0
    assert line in words(capsys.readouterr())
    assert "83.7% of the weights are in LSTM" in (out / "card.md").read_text()
    report = json.loads((out / "report.json").read_text())
    assert report["left_dense"][0]["weights"] == 2 * 4 * 16 * 16
    assert main(["explain", source, "--tokens", "4"]) == 0
    assert line in words(capsys.readouterr())
