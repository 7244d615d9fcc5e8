# SPDX-License-Identifier: Apache-2.0
"""Graphs on the command line: train, go on to the same bits, and what is refused."""

import shutil

import numpy as np
import pytest
import torch

import gossamer
from gossamer.data import generator_of
from gossamer.graph import Graph
from gossamer.training.run_files import read_metrics
from gossamer.zoo.problems.graphs import partition_problem

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: graph
      model: {model}
      data: {{graph: {graph}}}
      steps: 24
      batch: 16
      clip: null
      optimizer: {{lr: 0.02}}
      rate: {{shape: constant, warmup: 0.0}}
      compaction: off
      checkpoint: {{every: 6}}
      evaluation: {{every: 6, keep: best}}
      log_every: 6
"""
GCN = "{name: gcn, width: 16, dropout: 0.3}"
STILL = "{name: gcn, width: 16, dropout: 0.0}"
SAGE = "{name: sage, width: 16}"
LIGHT = "{name: lightgcn, width: 8, layers: 2}"
FULL, BATCHES, LINKS = "{}", "{fanouts: [4, 3]}", "{predict: links}"
KINDS = {
    "full graph": (GCN, FULL),
    "kept products": (STILL, FULL),
    "attention": ("{name: gat, width: 8, heads: 2}", FULL),
    "neighbours": (SAGE, BATCHES),
    "links": (LIGHT, LINKS),
}


def write_recipe(tmp_path, model=GCN, graph=FULL, **changes):
    text = RECIPE.format(model=model, graph=graph)
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


@pytest.fixture
def data(tmp_path):
    problem = partition_problem(generator_of(3), num_nodes=160, inside=0.15, between=0.02)
    path = tmp_path / "graph.npz"
    np.savez(path, edges=problem.edges.T.numpy(), x=problem.x.numpy(), y=problem.y.numpy())
    return path


def files_of(folder):
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "card.md"
    }


def test_classes_of_nodes_are_learned(gossamer_cli, tmp_path, data):
    out = tmp_path / "out"
    recipe = write_recipe(tmp_path, **{"steps: 24": "steps: 60"})
    ran = gossamer_cli("train", recipe, "--data", data, "-o", out, "--json")
    assert ran.code == 0, ran.err
    quality = ran.document["quality"]
    assert list(quality) == ["accuracy", "eval_loss", "test_accuracy", "test_loss"]
    assert quality["accuracy"] > 0.8
    assert "Graph: 128 train, 16 validation, 16 test nodes." in ran.err
    records = read_metrics(tmp_path / "out.run" / "metrics.jsonl")
    evaluated = [record for record in records if record["kind"] == "evaluation"]
    assert quality["eval_loss"] == min(record["eval_loss"] for record in evaluated)
    assert [record["test_accuracy"] for record in records if record["kind"] == "report"]
    # The artifact says what it is, and gives what was measured.
    model, arrays = gossamer.load(out).eval(), np.load(data)
    edges = torch.from_numpy(arrays["edges"].T)
    both = torch.cat([edges, edges.flip(0)], dim=1)
    with torch.inference_mode():
        logits = model(torch.from_numpy(arrays["x"]), Graph.of(both, num_nodes=160))
    right = (logits.argmax(1) == torch.from_numpy(arrays["y"])).float().mean()
    assert right > 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_to_the_same_bits(gossamer_cli, tmp_path, data, kind):
    model, graph = KINDS[kind]
    recipe = write_recipe(tmp_path, model, graph)
    source = "zoo:graph" if kind == "links" else data
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for out in (whole, stopped):
        ran = gossamer_cli("train", recipe, "--data", source, "-o", out, "-q", "--json")
        assert ran.code == 0, ran.err
    shutil.rmtree(stopped)
    shutil.rmtree(tmp_path / "stopped.run" / "checkpoints" / "step_00000024")
    again = gossamer_cli(
        "train", recipe, "--data", source, "-o", stopped, "-q", "--resume", "--json"
    )
    assert again.code == 0, again.err
    assert again.document["quality"] == ran.document["quality"]
    assert files_of(whole) == files_of(stopped)


def test_weights_become_zero_and_the_layers_compact(gossamer_cli, tmp_path, data):
    zeros = "compaction: kernel\n      schedule: {kind: gradual, sparsity: 0.5, begin: 0, end: 12"
    changes = {"compaction: off": f"{zeros}, every: 2}}", ", keep: best": ""}
    recipe, out = write_recipe(tmp_path, **changes), tmp_path / "out"
    ran = gossamer_cli("train", recipe, "--data", data, "-o", out, "-q", "--json")
    assert ran.code == 0, ran.err
    model = gossamer.load(out)
    kept = sum(layer.lin.nnz for layer in model.layers)
    assert kept == pytest.approx(0.5 * (4 * 16 + 16 * 4), abs=2)
    assert {layer.lin.form for layer in model.layers} == {"compact"}


def test_a_model_is_trained_further(gossamer_cli, tmp_path, data):
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    words = ["train", recipe, "--data", data, "-q", "-o"]
    assert gossamer_cli(*words, out).code == 0
    ran = gossamer_cli(*words, tmp_path / "more", "--model", out)
    assert ran.code == 0, ran.err
    arrays = dict(np.load(data))
    np.savez(data, **{**arrays, "x": arrays["x"][:, :3]})
    ran = gossamer_cli(*words, tmp_path / "no", "--model", out)
    assert ran.code == 2
    assert "takes 4 features of a node; the data have 3" in ran.err


@pytest.mark.parametrize(
    ("model", "graph", "changes", "text"),
    [
        (LIGHT, FULL, {}, "lightgcn does not predict nodes"),
        (GCN, LINKS, {}, "gcn does not predict links"),
        (LIGHT, "{predict: links, fanouts: [2, 2]}", {}, "pairs see the whole graph"),
        (GCN, "{fanouts: [2]}", {}, "names 1 hops; the model has 2 layers"),
        (GCN, "{fanouts: [0, 1]}", {}, "fanouts"),
        ("{name: gat, width: 9, heads: 2}", FULL, {}, "2 heads do not divide width 9"),
        ("{name: gcn, heads: 2}", FULL, {}, "gcn has none"),
        ("{name: lightgcn, dropout: 0.1}", LINKS, {}, "lightgcn has none"),
        (GCN, FULL, {"task: graph": "task: text"}, "belongs to task graph"),
        (GCN, FULL, {"clip: null": "mesh: {data: 2}"}, "cannot be shared out"),
        (GCN, BATCHES, {"clip: null": "mesh: {tensor: 2}"}, "by their nodes: use data"),
        (GCN, FULL, {"clip: null": "grow: [{at: 2, width: 2}]"}, "do not grow"),
        (GCN, "{split: {validation: 0.6, test: 0.6}}", {}, "leave nothing to train on"),
    ],
)
def test_recipes_that_cannot_be(gossamer_cli, tmp_path, data, model, graph, changes, text):
    recipe = write_recipe(tmp_path, model, graph, **changes)
    ran = gossamer_cli("train", recipe, "--data", data, "-o", tmp_path / "out")
    assert ran.code == 2
    assert text in ran.err


def test_files_that_cannot_be(gossamer_cli, tmp_path, data):
    words = ["train", write_recipe(tmp_path), "-o", tmp_path / "out", "--data"]
    for source, text in (
        (tmp_path / "no.npz", "there is no such file"),
        ("zoo:text", "there are no such generated data"),
        (tmp_path, "has no edges.csv"),
    ):
        ran = gossamer_cli(*words, source)
        assert ran.code == 2
        assert text in ran.err
    ran = gossamer_cli(*words, data, "--eval", data)
    assert ran.code == 2
    assert "parts of a graph are in its file" in ran.err
    ran = gossamer_cli("plan", "train-graph", "--data", "zoo:graph")
    assert ran.code == 2
    assert "graphs and their traffic are not counted yet" in ran.err


def test_dry_run(gossamer_cli, tmp_path, data):
    ran = gossamer_cli(
        *("train", write_recipe(tmp_path), "--data", data, "-o", tmp_path / "out"),
        *("--dry-run", "--json"),
    )
    assert ran.code == 0, ran.err
    assert ran.document["parameters"] == 4 * 16 + 16 + 16 * 4 + 4
    assert not (tmp_path / "out").exists()


def test_a_search_takes_the_data_as_training_did(gossamer_cli, tmp_path, monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    found = partition_problem(generator_of(3), num_nodes=160, inside=0.15, between=0.02)
    path = tmp_path / "g.npz"
    np.savez(path, edges=found.edges.T, x=found.x.abs(), y=found.y)
    made, small = tmp_path / "made", tmp_path / "small"
    rows = "stages.0.train.data.graph.normalise=rows"
    words = ["--set", "steps=40", "--set", rows, "-o", made, "-q", "--json"]
    ran = gossamer_cli("train", "train-graph", "--data", path, *words)
    assert ran.code == 0, ran.err
    shrunk = gossamer_cli(
        *("shrink", made, "--data", path, "-o", small, "--max-loss", "99%", "--budget", "30s"),
        "--json",
    )
    assert shrunk.code == 0, shrunk.err
    # The dense model has in the search the accuracy that training reported.
    accuracy = 100 * ran.document["quality"]["test_accuracy"]
    assert shrunk.document["dense_quality"] == pytest.approx(accuracy, abs=1e-6)
