# SPDX-License-Identifier: Apache-2.0
"""Attention over blocks: every kernel set against masked SDPA in float64, gradients included."""

import math

import pytest
import torch

import gossamer
from gossamer.ops.attention import alibi_bias
from gossamer.ops.attention.ranges import alibi_slopes
from gossamer.ops.attention.torch_form import kept_pairs
from gossamer.ops.kernels import available_kernels
from gossamer.patterns.attention import parse_attention

PATTERNS = [
    "full",
    "window:100",
    "window:40+global:3",
    "bigbird:block=16,window=3,global=2,random=2",
    "strided:30",
    "fixed:50,c=4",
    "sinks:4+window:20",
    "window:9; full",
]


@pytest.fixture(params=available_kernels())
def _kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(*shape, generator=generator)


def inputs(batch=2, heads=2, kv_heads=2, queries=70, keys=70, dim=16, value_dim=None):
    return (
        normal(batch, heads, queries, dim),
        normal(batch, kv_heads, keys, dim, seed=1),
        normal(batch, kv_heads, keys, value_dim or dim, seed=2),
    )


def oracle(q, k, v, mask, *, scale=None, softcap=None, bias=None, keep=None):
    """Masked attention with all pairs; `mask` broadcasts to [batch, heads, queries, keys]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    score = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    if bias is not None:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        score = score + bias[:, i - j + k.shape[2] - 1]
    score = score.masked_fill(~mask, -math.inf)
    is_empty = ~mask.expand_as(score).any(-1, keepdim=True)
    weight = torch.softmax(score.masked_fill(is_empty, 0.0), -1).masked_fill(is_empty, 0.0)
    weight = weight if keep is None else weight * keep
    return weight @ v, torch.logsumexp(score, -1)


def dense_mask(pattern, q, k, causal=False, offset=None):
    heads = q.shape[1]
    lists = parse_attention(pattern).blocks(
        q.shape[2], k.shape[2], heads=heads, causal=causal, offset=offset
    )
    return torch.stack([torch.from_numpy(lists.dense_mask(h)) for h in range(heads)])[None]


def results(function, leaves, dtype):
    leaves = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
    out, lse = function(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out)
    of_lse = torch.linspace(1, -1, lse.numel(), dtype=dtype).view_as(lse)
    loss = (out * weight).sum() + (lse.masked_fill(lse == -math.inf, 0.0) * of_lse).sum()
    return [out, lse, *torch.autograd.grad(loss, leaves)]


def assert_same(ours, theirs, leaves, atol=1e-5):
    found = results(ours, leaves, torch.float32)
    expected = results(theirs, leaves, torch.float64)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(
            a.double(), b, rtol=1e-5, atol=atol * max(1, math.sqrt(leaves[0].shape[2]) / 4)
        )


@pytest.mark.usefixtures("_kernels")
class TestAgainstFloat64:
    @pytest.mark.parametrize("pattern", PATTERNS)
    @pytest.mark.parametrize("causal", [False, True])
    def test_patterns(self, pattern, causal):
        leaves = inputs(queries=130, keys=130)
        mask = dense_mask(pattern, *leaves[:2], causal)
        assert_same(
            lambda q, k, v: gossamer.attention(q, k, v, pattern, causal=causal, return_lse=True),
            lambda q, k, v: oracle(q, k, v, mask),
            leaves,
        )

    @pytest.mark.parametrize("tokens", [0, 1, 2, 63, 64, 65])
    @pytest.mark.parametrize("dim", [1, 7, 24])
    def test_sizes(self, tokens, dim):
        leaves = inputs(batch=1, queries=tokens, keys=tokens, dim=dim)
        mask = dense_mask("window:9", *leaves[:2])
        assert_same(
            lambda q, k, v: gossamer.attention(q, k, v, "window:9", return_lse=True),
            lambda q, k, v: oracle(q, k, v, mask),
            leaves,
        )

    @pytest.mark.parametrize("sizes", [(6, 2, 70, 90, 8), (4, 1, 90, 70, 40), (3, 3, 1, 130, 16)])
    def test_groups_of_queries_other_lengths_and_other_values(self, sizes):
        heads, kv_heads, queries, keys, value_dim = sizes
        leaves = inputs(1, heads, kv_heads, queries, keys, 16, value_dim)
        for offset in (None, 0, 7):
            mask = dense_mask("window:30+sinks:2", *leaves[:2], True, offset)
            assert_same(
                lambda q, k, v, offset=offset: gossamer.attention(
                    q, k, v, "window:30+sinks:2", causal=True, offset=offset, return_lse=True
                ),
                lambda q, k, v, mask=mask: oracle(q, k, v, mask),
                leaves,
            )

    def test_lengths(self):
        leaves = inputs(batch=3)
        lengths = torch.tensor([70, 33, 0])
        place = torch.arange(70)
        own = place < lengths[:, None]
        mask = dense_mask("window:40", *leaves[:2], True)
        mask = mask & (own[:, None, :, None] & own[:, None, None, :])
        assert_same(
            lambda q, k, v: gossamer.attention(
                q, k, v, "window:40", causal=True, lengths=lengths, return_lse=True
            ),
            lambda q, k, v: oracle(q, k, v, mask),
            leaves,
        )

    def test_positions_of_sorted_tokens(self):
        leaves = inputs(queries=130, keys=130)
        positions = torch.stack(
            [torch.randperm(130, generator=torch.Generator().manual_seed(h)) for h in range(4)]
        )
        positions = positions.view(2, 2, 130) // 2
        mask = dense_mask("window:90", *leaves[:2])
        mask = mask & (positions[..., None, :] <= positions[..., None])
        assert_same(
            lambda q, k, v: gossamer.attention(
                q, k, v, "window:90", positions=positions, return_lse=True
            ),
            lambda q, k, v: oracle(q, k, v, mask),
            leaves,
        )

    def test_documents(self):
        leaves = inputs(queries=150, keys=150)
        first = torch.repeat_interleave(torch.tensor([4, 2, 9, 2]), torch.tensor([10, 60, 1, 79]))
        second = torch.arange(150) // 64
        documents = torch.stack([first, second])
        changes = torch.cat([torch.zeros(2, 1), (documents.diff() != 0).float()], 1).cumsum(1)
        same = changes[:, None, :, None] == changes[:, None, None, :]
        mask = dense_mask("full", *leaves[:2], True) & same
        assert_same(
            lambda q, k, v: gossamer.attention(
                q, k, v, causal=True, documents=documents, return_lse=True
            ),
            lambda q, k, v: oracle(q, k, v, mask),
            leaves,
        )

    @pytest.mark.parametrize("softcap", [None, 0.7])
    def test_bias_by_distance_and_its_gradient(self, softcap):
        q, k, v = inputs(heads=4, kv_heads=2, queries=70, keys=100)
        bias = normal(4, 169)
        mask = dense_mask("window:60", q, k)
        assert_same(
            lambda q, k, v, b: gossamer.attention(
                q, k, v, "window:60", bias=b, softcap=softcap, scale=0.4, return_lse=True
            ),
            lambda q, k, v, b: oracle(q, k, v, mask, bias=b, softcap=softcap, scale=0.4),
            (q, k, v, bias),
            atol=3e-5,
        )

    def test_alibi(self):
        leaves = inputs(heads=6, kv_heads=6)
        bias = alibi_bias(alibi_slopes(6).double(), 70, 70)
        assert alibi_slopes(8)[:2].tolist() == [0.5, 0.25]
        mask = dense_mask("full", *leaves[:2], True)
        assert_same(
            lambda q, k, v: gossamer.attention(q, k, v, causal=True, alibi=True, return_lse=True),
            lambda q, k, v: oracle(q, k, v, mask, bias=bias),
            leaves,
        )

    def test_dropout_drops_the_same_weights_forward_and_backward(self):
        leaves = inputs(queries=130, keys=130)
        place = torch.arange(130)
        keep = torch.stack([kept_pairs(5, head, place, place, 0.3) for head in range(4)])
        assert 0.68 < keep.double().mean() < 0.72
        keep = keep.view(2, 2, 130, 130) / 0.7
        mask = dense_mask("window:60", *leaves[:2])
        assert_same(
            lambda q, k, v: gossamer.attention(
                q, k, v, "window:60", dropout=0.3, seed=5, return_lse=True
            ),
            lambda q, k, v: oracle(q, k, v, mask, keep=keep),
            leaves,
        )

    def test_bfloat16_is_rounded_once(self):
        leaves = [x.bfloat16() for x in inputs(queries=130, keys=130)]
        mask = dense_mask("window:60", *leaves[:2])

        def ours(q, k, v):
            return gossamer.attention(q, k, v, "window:60", return_lse=True)

        found = results(ours, leaves, torch.bfloat16)
        expected = results(lambda q, k, v: oracle(q, k, v, mask), leaves, torch.float64)
        assert found[0].dtype is found[2].dtype is torch.bfloat16
        assert found[1].dtype is torch.float32
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=0.02, atol=0.04)

    def test_tensors_that_lie_otherwise(self):
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs())
        q = q.detach().requires_grad_()
        plain = gossamer.attention(*inputs(), "window:9")
        out = gossamer.attention(q, k, v, "window:9")
        assert torch.equal(out, plain)
        assert out.transpose(1, 2).is_contiguous()
        out.sum().backward()  # a gradient without strides
        turned = k.transpose(2, 3).contiguous().transpose(2, 3)
        assert torch.equal(gossamer.attention(q, turned, v, "window:9"), plain)

    def test_numbers_that_are_none_stay_in_their_rows(self):
        q, k, v = inputs(batch=1, heads=1, kv_heads=1)
        k[0, 0, 3] = math.nan
        out = gossamer.attention(q, k, v, "window:1", causal=True)
        assert out.isnan().any(-1).flatten().nonzero().tolist() == [[3]]
        q, k, v = inputs(batch=1, heads=1, kv_heads=1)
        bias = torch.zeros(1, 139)
        bias[:, :60] = -math.inf
        out = gossamer.attention(q, k, v, bias=bias)
        mask = torch.arange(70)[:, None] - torch.arange(70) + 69 >= 60
        assert torch.allclose(out, oracle(q, k, v, mask[None, None])[0], atol=1e-5)

    def test_large_scores_do_not_overflow(self):
        leaves = [x * 60 for x in inputs()]
        mask = dense_mask("window:60", *leaves[:2])
        out = gossamer.attention(*leaves, "window:60")
        expected = oracle(*(x.double() for x in leaves), mask)[0]
        torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=0.02)


def test_sets_of_kernels_agree_on_dropout(monkeypatch):
    outs = []
    for kernels in available_kernels():
        monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
        outs.append(gossamer.attention(*inputs(), dropout=0.5, seed=3))
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], rtol=1e-5, atol=1e-5)


def test_equal_bits_for_any_number_of_threads():
    leaves = inputs(batch=3, heads=4, kv_heads=2, queries=200, keys=200)
    bias, before = normal(4, 399), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            run = lambda q, k, v, b: gossamer.attention(  # noqa: E731
                q, k, v, "window:90+global:2", bias=b, dropout=0.1, seed=1, return_lse=True
            )
            found.append(results(run, (*leaves, bias), torch.float32))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_row_that_attends_to_nothing_gives_zero():
    q, k, v = inputs(queries=70, keys=70)
    out, lse = gossamer.attention(q, k, v, "sinks:1", causal=True, offset=-5, return_lse=True)
    assert (out[:, :, :5] == 0).all()
    assert (lse[:, :, :5] == -math.inf).all()
    assert (out[:, :, 5:] != 0).all()
    assert lse[:, :, 5:].isfinite().all()


def test_seeds_are_drawn_from_torch():
    q, k, v = inputs()
    torch.manual_seed(1)
    first, second = (gossamer.attention(q, k, v, dropout=0.5) for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first, gossamer.attention(q, k, v, dropout=0.5))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("extras", [{}, {"softcap": 1.5}, {"dropout": 0.3, "seed": 4}])
def test_other_precisions_run_in_torch(extras):
    leaves = [x.double().requires_grad_() for x in inputs(1, 2, 1, 9, 9, 3)]
    bias = normal(2, 17).double().requires_grad_()

    def run(q, k, v, b):
        return gossamer.attention(
            q, k, v, "window:5+global:1", causal=True, bias=b, return_lse=True, **extras
        )

    assert torch.autograd.gradcheck(run, (*leaves, bias))
    single = run(*(x.float() for x in (*leaves, bias)))
    for a, b in zip(single, run(*leaves, bias), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_a_list_made_by_hand():
    q, k, v = inputs(queries=130, keys=130)
    lists = parse_attention("window:40").blocks(130, heads=2, causal=True)
    q.requires_grad_()
    out = gossamer.attention(q, k, v, lists)
    assert torch.equal(out, gossamer.attention(q, k, v, "window:40", causal=True))
    del lists
    out.sum().backward()
    one = parse_attention("window:40").blocks(130, causal=True)
    assert torch.equal(out, gossamer.attention(q, k, v, one))
