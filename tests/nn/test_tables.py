# SPDX-License-Identifier: Apache-2.0
"""Tables as layers: torch.nn's results where nothing is rounded, and the grid where it is."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gossamer
from gossamer.errors import InputError
from gossamer.nn import Embedding, EmbeddingBag, quantize_tables
from gossamer.nn.layer_kinds import form_of, kind_name, kind_of, sparse_layers
from gossamer.nn.layer_weights import weight_of
from gossamer.nn.layers.tables import fold_rows, packed_table

HOW = (
    {"bits": 4},
    {"bits": 8, "granularity": "row"},
    {"bits": 2},
    {"bits": 4, "half_scale": True},
    {"bits": None},
    {"bits": 8, "granularity": "row", "shadow": False},
    {"bits": 4, "granularity": "row", "shadow": False},
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def stock_bag(num=50, width=13, seed=0, **more):
    weight = torch.randn(num, width, generator=generator(seed))
    return nn.EmbeddingBag(num, width, _weight=weight, **more)


def ragged(seed, num=50, bags=8):
    sizes = torch.randint(0, 6, (bags,), generator=generator(seed))
    ids = torch.randint(0, num, (int(sizes.sum()),), generator=generator(seed + 1))
    return ids, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 3, -1])
@pytest.mark.parametrize("last", [False, True])
def test_without_rounding_it_is_the_bag_of_torch(mode, padding, last):
    more = {"mode": mode, "padding_idx": padding, "include_last_offset": last}
    stock, ours = stock_bag(**more), EmbeddingBag.from_dense(stock_bag(**more), bits=None)
    ids, offsets = ragged(1)
    offsets = offsets if last else offsets[:-1]
    y, expected = ours(ids, offsets), stock(ids, offsets)
    assert torch.allclose(y, expected, atol=1e-6)
    grad = torch.randn(y.shape, generator=generator(2))
    y.backward(grad)
    expected.backward(grad)
    assert ours.weight.grad.is_sparse
    assert torch.allclose(ours.weight.grad.to_dense(), stock.weight.grad, atol=1e-5)
    multi = torch.randint(0, 50, (4, 3), generator=generator(3))
    assert torch.allclose(ours(multi), stock(multi), atol=1e-6)


@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (2, 0, 3)])
def test_without_rounding_it_is_the_embedding_of_torch(shape):
    stock = nn.Embedding(9, 5, padding_idx=2)
    with torch.no_grad():
        stock.weight[2] = 1.0  # torch looks the padding up, too
    ours = Embedding.from_dense(copy.deepcopy(stock), bits=None)
    ids = torch.randint(0, 9, shape, generator=generator(1))
    y, expected = ours(ids), stock(ids)
    assert torch.equal(y, expected)
    y.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.weight.grad.to_dense(), stock.weight.grad)


def test_weights_of_positions_get_gradients():
    ours, stock = EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=None), stock_bag(mode="sum")
    ids = torch.randint(0, 50, (4, 3), generator=generator(3))
    given = [torch.rand(4, 3, generator=generator(5)).requires_grad_() for _ in range(2)]
    grad = torch.randn(4, 13, generator=generator(6))
    ours(ids, per_sample_weights=given[0]).backward(grad)
    stock(ids, per_sample_weights=given[1]).backward(grad)
    assert torch.allclose(given[0].grad, given[1].grad, atol=1e-5)
    assert torch.allclose(ours.weight.grad.to_dense(), stock.weight.grad, atol=1e-5)


@pytest.mark.parametrize("how", HOW)
def test_lookups_are_those_of_the_packed_and_of_the_dense_form(how):
    table = EmbeddingBag.from_dense(stock_bag(mode="sum"), **how).eval()
    ids, offsets = ragged(4)
    y = table(ids, offsets[:-1]).detach()
    assert torch.equal(y, packed_table(table)(ids, offsets[:-1]))
    dense = table.to_dense()
    assert type(dense) is nn.EmbeddingBag
    assert torch.allclose(dense(ids, offsets[:-1]), y, atol=1e-5)
    assert torch.equal(weight_of(table), weight_of(packed_table(table)))
    assert torch.equal(dense(ids[:, None]), table(ids[:, None]))


def test_rows_are_rounded_before_they_are_pooled():
    table = EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4)
    ids = torch.tensor([[1, 2, 2, 7]])
    each = table.dense_weight()[ids[0]]
    assert torch.allclose(table(ids)[0], each.sum(0), atol=1e-6)
    scale = float(table.scale)
    pooled = (table.weight.detach()[ids[0]].sum(0) / scale).round().clamp(-8, 7) * scale
    assert not torch.allclose(table(ids)[0], pooled, atol=1e-3)


def test_the_parameter_stays_the_shadow():
    stock = stock_bag(mode="sum")
    table = EmbeddingBag.from_dense(stock, bits=4)
    assert table.weight is stock.weight
    assert sum(p.numel() for p in table.parameters()) == 50 * 13
    assert sum(b.numel() for b in table.buffers()) == 3


def test_the_scale_is_exact_every_period_and_follows_in_between():
    table = EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4, period=3).train()
    first = float(table.top)
    assert first == float(table.weight.detach().abs().max())
    ids = torch.tensor([[0, 1]])
    with torch.no_grad():
        table.weight.mul_(0.5)
    for _ in range(3):
        table(ids)
        assert float(table.top) == first  # an upper bound until the exact pass
    table(ids)
    assert float(table.top) == float(table.weight.detach().abs().max())
    with torch.no_grad():
        table.weight[1, 0] = 10.0
    table(torch.tensor([[2, 3]]))
    assert float(table.top) < 10  # not touched, not seen
    table(ids)
    assert float(table.top) == 10.0
    assert table.clipped == 1


def test_many_clipped_values_bring_the_exact_pass_forward():
    table = EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4, period=1000).train()
    with torch.no_grad():
        table.weight[:10].mul_(4)
    ids = torch.arange(10)[:, None]
    table(ids)
    assert table.clipped > 0.01 * 10 * 13
    assert int(table.counts[0]) == 0
    with torch.no_grad():
        table.weight.mul_(0.25)
    table(ids)
    assert float(table.top) == float(table.weight.detach().abs().max())


def test_evaluation_changes_nothing():
    table = EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4).eval()
    before = {name: tensor.clone() for name, tensor in table.state_dict().items()}
    with torch.no_grad():
        table.weight[0, 0] = 100.0
        before["weight"][0, 0] = 100.0
    table(torch.tensor([[0, 1]]))
    assert all(torch.equal(before[name], t) for name, t in table.state_dict().items())


def test_a_resumed_scale_is_the_same_to_the_bit():
    def run(table, steps, seed):
        for step in range(steps):
            ids = torch.randint(0, 50, (6, 3), generator=generator(seed + step))
            y = table(ids)
            y.square().sum().backward()
            with torch.no_grad():
                table.weight.sub_(0.05 * table.weight.grad.to_dense())
            table.weight.grad = None

    whole = EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4, period=4).train()
    run(whole, 11, 0)
    half = EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4, period=4).train()
    run(half, 6, 0)
    other = EmbeddingBag(50, 13, mode="sum", bits=4, period=4).train()
    other.load_state_dict(half.state_dict())
    run(other, 5, 6)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_nan_is_an_error_not_a_code():
    table = EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4).train()
    with torch.no_grad():
        table.weight[7, 2] = float("nan")
    with pytest.raises(InputError, match="NaN or an infinity"):
        table(torch.tensor([[7]]))


@pytest.mark.parametrize(
    ("stock", "text"),
    [
        (nn.EmbeddingBag(3, 2, mode="max"), "mode='max'"),
        (nn.EmbeddingBag(3, 2, max_norm=1.0), "max_norm"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.Embedding(3, 2, dtype=torch.float64), "float64 rows"),
    ],
)
def test_what_tables_do_not_do_is_refused_by_name(stock, text):
    kind = Embedding if isinstance(stock, nn.Embedding) else EmbeddingBag
    with pytest.raises(InputError, match=text):
        kind.from_dense(stock)
    model = nn.Sequential(nn.Embedding(4, 2), stock)
    with pytest.raises(InputError, match=f"1: .*{text}"):
        quantize_tables(model)
    assert type(model[0]) is nn.Embedding


@pytest.mark.parametrize(
    "how", [{"bits": 3}, {"granularity": "x"}, {"period": 0}, {"shadow": False}, {"bits": True}]
)
def test_settings_that_make_no_sense_are_refused(how):
    with pytest.raises(InputError):
        EmbeddingBag.from_dense(stock_bag(mode="sum"), **how)


@pytest.mark.parametrize("shared", ["zero", "mean", "hash"])
@pytest.mark.parametrize("how", [{"bits": 4}, {"bits": None}, {"bits": 8, "granularity": "row"}])
def test_rare_rows_share_a_row(shared, how):
    table = EmbeddingBag.from_dense(stock_bag(mode="sum", padding_idx=0), **how)
    counts = torch.randint(0, 5, (50,), generator=generator(3))
    folded = fold_rows(table, counts, min_count=2, shared=shared, num_shared=3)
    kept = (counts >= 2) | (torch.arange(50) == 0)
    groups = 3 if shared == "hash" else 1
    assert len(folded.weight) == int(kept.sum()) + groups
    assert torch.equal(folded.row_map[kept].sort()[0], torch.arange(int(kept.sum())).int())
    hot = counts[kept][folded.row_map[kept].long().argsort()]
    assert (hot[1:] <= hot[:-1])[1:].all()  # hot rows together, the padding among them
    raw = folded.weight.detach()[folded.row_map.long()]
    assert torch.equal(raw[kept], table.weight.detach()[kept])
    rare = ~kept
    if shared == "zero":
        assert not raw[rare].any()
    if shared == "mean":
        assert torch.allclose(raw[rare][0], table.weight.detach()[rare].mean(0), atol=1e-6)
    # It trains on, packs and looks the same up.
    ids = torch.randint(0, 50, (6, 3), generator=generator(4))
    folded.train()(ids).sum().backward()
    assert folded.weight.grad._nnz() > 0
    packed = packed_table(folded.eval())
    assert torch.equal(packed(ids), folded(ids).detach())
    assert packed.nbytes < packed_table(table).nbytes + 50 * 4


def test_a_packed_table_can_be_folded():
    packed = packed_table(EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4))
    counts = torch.arange(50) % 3
    folded = fold_rows(packed, counts)
    kept = counts > 0
    assert torch.equal(weight_of(folded)[kept], weight_of(packed)[kept])
    with pytest.raises(InputError, match="map already"):
        fold_rows(folded, counts)
    with pytest.raises(InputError, match="counts must be"):
        fold_rows(packed, counts[:3])


def test_packed_bytes_are_codes_and_one_scale():
    packed = packed_table(EmbeddingBag.from_dense(stock_bag(width=16, mode="sum"), bits=4))
    assert packed.nbytes == 50 * 16 * 4 // 8 + 4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 8)
        self.head = nn.Linear(8, 30, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        return self.head(self.emb(ids))


def test_a_table_tied_to_an_output_layer_is_one_copy():
    torch.manual_seed(0)
    model = Tied()
    weight = model.emb.weight
    tables = quantize_tables(model, bits=4)
    assert list(tables) == ["emb"]
    assert model.emb.weight is weight
    assert model.head.weight is weight
    assert sum(p.numel() for p in model.parameters()) == 240
    ids = torch.tensor([1, 2, 2])
    rounded = model.emb.dense_weight()
    y = model(ids)
    assert torch.allclose(y, rounded[ids] @ rounded.t(), atol=1e-6)
    y.sum().backward()
    expected = torch.zeros(30, 8)
    expected += rounded[ids].sum(0)
    expected.index_add_(0, ids, rounded.sum(0).expand(3, 8))
    assert torch.allclose(weight.grad.to_dense(), expected, atol=1e-5)


def test_the_table_of_kinds_knows_tables():
    model = nn.Sequential(nn.EmbeddingBag(20, 8, mode="sum"), nn.Linear(8, 4))
    quantize_tables(model)
    assert (kind_name(model[0]), form_of(model[0])) == ("table", "trained")
    assert kind_of(model[0], has_masks=True) is None
    assert list(sparse_layers(model)) == []
    report = gossamer.sparsify(model, sparsity=0.5)
    assert [layer.name for layer in report.layers] == ["1"]
    assert model[0].weight.numel() == 160
    with pytest.raises(gossamer.errors.GossamerError, match="none of which can be pruned"):
        gossamer.sparsify(model, sparsity=0.5, targets=["0"])


def test_compile_packs_tables_and_explain_names_them():
    model = nn.Sequential(nn.EmbeddingBag(20, 8, mode="sum"), nn.Linear(8, 4))
    quantize_tables(model)
    ids = torch.randint(0, 20, (3, 4), generator=generator(0))
    expected = model.eval()(ids).detach()
    fast = gossamer.compile(model)
    assert (kind_name(fast[0]), form_of(fast[0])) == ("table", "packed")
    assert torch.equal(fast(ids), expected)
    row = gossamer.explain(fast)[0]
    assert (row.name, row.kernel, row.is_sparse) == ("0", "table_int4", True)
    assert gossamer.explain(model)[0].kernel == "rounded when looked up"
    assert form_of(model[0]) == "trained"
    assert torch.equal(copy.deepcopy(fast)(ids), expected)


def test_a_packed_table_follows_edits_of_its_buffers():
    packed = packed_table(Embedding.from_dense(nn.Embedding(5, 6), bits=8))
    before = packed(torch.tensor(2))
    packed.codes.zero_()
    assert not packed(torch.tensor(2)).any()
    packed.scales.fill_(-1)
    with pytest.raises(gossamer.errors.FormatError, match="positive"):
        packed(torch.tensor(2))
    assert before.any()


def test_torch_compile_and_export_see_packed_tables():
    packed = packed_table(EmbeddingBag.from_dense(stock_bag(mode="sum"), bits=4))
    ids = torch.randint(0, 50, (6, 3), generator=generator(4))
    exported = torch.export.export(packed, (ids,), strict=False)
    assert torch.equal(exported.module()(ids), packed(ids))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(HOW),
    st.integers(1, 40),
    st.integers(1, 30),
    st.sampled_from(["sum", "mean"]),
    st.integers(0, 10**6),
)
def test_any_table_keeps_its_lookups_when_it_is_packed(how, num, width, mode, seed):
    table = EmbeddingBag.from_dense(stock_bag(num, width, seed, mode=mode), **how).eval()
    ids, offsets = ragged(seed, num)
    y = table(ids, offsets[:-1]).detach()
    assert torch.equal(y, packed_table(table)(ids, offsets[:-1]))
