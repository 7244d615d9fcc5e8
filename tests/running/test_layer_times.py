# SPDX-License-Identifier: Apache-2.0
"""Times of layers inside a forward."""

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import gossamer
from gossamer.cli.main import cli
from gossamer.nn.attention.parts import attention_parts
from gossamer.report.charts import layer_bars
from gossamer.running.bench import dense_copy
from gossamer.running.layers import LayerTime, LayerTimes, compile, layer_times


def test_every_layer_and_the_whole_have_times(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    torch.manual_seed(0)
    shared = nn.Linear(16, 16)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(16, 4)).eval()
    gossamer.sparsify(model, sparsity=0.9)
    x = torch.randn(8, 16)
    times = layer_times(compile(model, tokens=8), dense_copy(model), lambda net: net(x), seconds=0)
    assert [layer.name for layer in times.layers] == ["0", "3"]
    assert all(layer.dense_ms > 0 and layer.sparse_ms > 0 for layer in times.layers)
    assert 0 < times.dense_sum_ms == sum(layer.dense_ms for layer in times.layers)
    assert times.dense_ms > 0
    assert times.one_call == ()
    assert not any(module._forward_hooks for module in model.modules())


def test_networks_in_one_call_are_one_row(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()
    ).eval()
    gossamer.sparsify(model, sparsity=0.9)
    x = torch.randn(1, 3, 8, 8)
    fast = compile(model, example=x)
    net = fast.forward.net
    times = layer_times(fast, dense_copy(model), lambda one: one(x), seconds=0)
    assert times.one_call == ("network (one native call)",)
    by_name = {layer.name: layer for layer in times.layers}
    assert by_name["0"].sparse_ms is None
    assert by_name["network (one native call)"].dense_ms is None
    assert fast.forward.net is net


def test_attention_is_what_its_layers_leave(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")
    config = LlamaConfig(
        vocab_size=20, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=600,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    gossamer.sparsify(model, sparsity=0.5)
    ids = torch.randint(0, 20, (1, 512))
    fast, dense = compile(model, tokens=512, inplace=False), dense_copy(model)
    assert list(attention_parts(model)) == [f"model.layers.{i}.self_attn" for i in range(2)]
    times = layer_times(fast, dense, lambda net: net(ids), seconds=0)
    assert 0 < times.attention.dense_ms < times.dense_ms
    assert 0 < times.attention.sparse_ms < times.sparse_ms
    assert "attention" not in {layer.name for layer in times.layers}
    assert set(attention_parts(nn.TransformerEncoderLayer(8, 2))) == {"self_attn"}
    assert attention_parts(nn.Linear(2, 2)) == {}


def test_bars_are_on_one_scale():
    times = LayerTimes((LayerTime("a", 1.0, 0.5), LayerTime("b", None, 0.25)), 4.0, 1.0, ("b",))
    chart = layer_bars(times)
    widths = {bar.title.split(" ms")[0]: bar.width for bar in chart.bars}
    assert widths["whole forward: dense 4.000"] == pytest.approx(4 * widths["a: dense 1.000"])
    assert widths["all layers: sparse 0.750"] == pytest.approx(3 * widths["b: sparse 0.250"])
    assert [label.text for label in chart.labels if label.kind == "value"] == [
        *("2.00x", "0.250 ms", "1.33x", "4.00x"),
    ]


def test_explain_profiles(tmp_path):
    page = tmp_path / "page.html"
    command = ["explain", "zoo:mlp", "--tokens", "4", "--profile", "--html", str(page), "--json"]
    result = CliRunner().invoke(cli, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    profile = json.loads(result.stdout)["profile"]
    assert len(profile["layers"]) > 1
    assert profile["dense_ms"] > 0
    assert "Milliseconds of each layer inside a forward" in page.read_text()


def test_a_page_needs_a_profile(tmp_path):
    with pytest.raises(Exception, match="give --profile"):
        CliRunner().invoke(
            cli,
            ["explain", "zoo:mlp", "--html", str(tmp_path / "page.html")],
            catch_exceptions=False,
            standalone_mode=False,
        )
