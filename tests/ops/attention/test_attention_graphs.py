# SPDX-License-Identifier: Apache-2.0
"""Attention in graphs of torch, and what it refuses."""

import pytest
import torch

import gossamer
from gossamer.errors import InputError, PatternError
from gossamer.ops.attention.native_op import forward_op
from gossamer.patterns.attention import parse_attention


def inputs(tokens=70, heads=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, heads, tokens, 8, generator=generator) for _ in range(3)]


class Layer(torch.nn.Module):
    def forward(self, q, k, v):
        lengths = torch.full((q.shape[0],), q.shape[2] - 3)
        return gossamer.attention(
            q * 2, k, v, "window:20+global:2", causal=True, lengths=lengths, alibi=True
        )


def test_the_op_keeps_the_rules_of_torch():
    q, k, v = (x.requires_grad_() for x in inputs(20))
    args = q, k, v, None, None, None, None, "window:5", True, None, 0.3, 0.0, 0.0
    torch.library.opcheck(forward_op, args)


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_as_one_graph_with_gradients(backend):
    torch._dynamo.reset()
    leaves = [x.requires_grad_() for x in inputs()]
    eager = Layer()(*leaves)
    expected = torch.autograd.grad(eager.square().sum(), leaves)
    compiled = torch.compile(Layer(), fullgraph=True, backend=backend)
    out = compiled(*leaves)
    torch.testing.assert_close(out, eager)
    for a, b in zip(torch.autograd.grad(out.square().sum(), leaves), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_for_any_length():
    torch._dynamo.reset()
    compiled = torch.compile(Layer(), fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (40, 70, 100):
        leaves = inputs(tokens)
        torch.testing.assert_close(compiled(*leaves), Layer()(*leaves))


def test_exported_graphs_hold_the_pattern_as_text(tmp_path):
    leaves = tuple(inputs())
    exported = torch.export.export(Layer(), leaves)
    torch.export.save(exported, tmp_path / "layer.pt2")
    again = torch.export.load(tmp_path / "layer.pt2").module()
    torch.testing.assert_close(again(*leaves), Layer()(*leaves))
    assert "window:20+global:2" in str(exported.graph)


def test_dropout_is_drawn_inside_a_graph():
    torch._dynamo.reset()
    q, k, v = inputs()
    run = torch.compile(
        lambda q, k, v: gossamer.attention(q, k, v, dropout=0.5),
        fullgraph=True,
        backend="aot_eager",
    )
    assert not torch.equal(run(q, k, v), run(q, k, v))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda q, k, v: (q[:1], k, v, {}), "differ in their batch"),
        (lambda q, k, v: (q, k[:, :, :5], v, {}), "keys and values differ"),
        (lambda q, k, v: (q[..., :5], k, v, {}), "queries and keys differ in dim"),
        (lambda q, k, v: (q[:, :1], k, v, {}), "must divide those of queries"),
        (lambda q, k, v: (q[0], k, v, {}), "expected [batch, heads, tokens, dim]"),
        (lambda q, k, v: (q.double(), k, v, {}), "one floating point dtype"),
        (lambda q, k, v: (q.int(), k.int(), v.int(), {}), "one floating point dtype"),
        (lambda q, k, v: (q, k, v, {"dropout": 1.0}), "dropout must be in [0, 1)"),
        (lambda q, k, v: (q, k, v, {"softcap": -1.0}), "softcap must be positive"),
        (lambda q, k, v: (q, k, v, {"bias": torch.zeros(2, 3)}), "by distance"),
        (lambda q, k, v: (q, k, v, {"alibi": torch.zeros(3)}), "a slope for each of 2 heads"),
        (lambda q, k, v: (q, k, v, {"lengths": torch.zeros(3).int()}), "one for each sequence"),
        (lambda q, k, v: (q, k, v, {"lengths": torch.zeros(2)}), "whole numbers"),
        (lambda q, k, v: (q, k, v, {"positions": torch.zeros(3).int()}), "positions must be"),
        (lambda q, k, v: (q, k, v, {"documents": torch.zeros(3).int()}), "documents must be"),
        (lambda q, k, v: (q, k, v, {"pattern": "windw:3"}), "did you mean 'window'"),
        (lambda q, k, v: (q, k, v, {"pattern": "full; full; full"}), "3 patterns for 2 heads"),
    ],
)
def test_mistakes_get_a_sentence(change, said):
    q, k, v, named = change(*inputs())
    with pytest.raises(InputError) as caught:
        gossamer.attention(q, k, v, **named)
    assert said in str(caught.value)


def test_lists_must_fit():
    q, k, v = inputs()
    with pytest.raises(InputError, match="is for 64 queries"):
        gossamer.attention(q, k, v, parse_attention("full").blocks(64))
    with pytest.raises(InputError, match="leave causal out"):
        gossamer.attention(q, k, v, parse_attention("full").blocks(70), causal=True)
    with pytest.raises(PatternError):
        gossamer.attention(q, k, v, 7)
