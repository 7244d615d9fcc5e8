# SPDX-License-Identifier: Apache-2.0
"""Tables of int8 and int4 files are looked up from their codes: the same bits, fewer bytes."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer.errors import InputError, WeightIsPacked
from gossamer.formats.grid import Grid, row_grid
from gossamer.nn.layers.tables.gridded import GridTable, gridded
from gossamer.nn.rounding import round_layer
from gossamer.ops.table import Rounding

GRIDS = (Grid(4, 16), Grid(4, 32), Grid(4, 64), Grid(4, 128))


def on_grid(grid, rows, width, seed=0):
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
    weight[rows // 2] = 0  # spans without a scale
    return grid.rounded(weight)


@pytest.mark.parametrize("kernels", ["reference", "avx2", "avx512"])
@pytest.mark.parametrize("width", [1, 15, 16, 17, 33, 64, 65, 96, 130, 384])
def test_lookups_have_the_bits_of_the_ordinary_table(width, kernels, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", kernels)
    for grid in (*GRIDS, row_grid(width)):
        stock = nn.Embedding(21, width, _weight=on_grid(grid, 21, width))
        packed = gridded(stock)
        assert packed is not None, grid
        ids = torch.randint(0, 21, (5, 7), generator=torch.Generator().manual_seed(1))
        assert torch.equal(packed(ids), stock(ids))
        assert torch.equal(packed.dense_weight(), stock.weight)
        stored = packed.to_compact()
        assert torch.equal(stored.weight, stock.weight)


def test_bags_have_the_bits_of_float_rows():
    weight = on_grid(Grid(4, 32), 40, 48)
    stock = nn.EmbeddingBag(40, 48, mode="mean", padding_idx=3, _weight=weight)
    ids, offsets = torch.tensor([3, 1, 2, 2, 39, 0]), torch.tensor([0, 1, 1, 4])
    packed = gridded(stock)
    floats = gossamer.nn.EmbeddingBag.from_dense(stock, bits=None).eval()
    assert torch.equal(packed(ids, offsets), floats(ids, offsets))
    assert packed.nbytes == 40 * (48 // 2 + 2 * 4)


def test_what_is_on_no_grid_stays():
    assert gridded(nn.Embedding(9, 32)) is None
    weight = on_grid(Grid(4, 32), 9, 32)
    assert gridded(nn.Embedding(9, 32, max_norm=1.0, _weight=weight)) is None
    assert gridded(nn.EmbeddingBag(9, 32, mode="max", _weight=weight)) is None
    assert gridded(nn.Embedding(9, 32, _weight=weight.double())) is None
    assert gridded(nn.Embedding(0, 32)) is None


@pytest.mark.parametrize("span", [-16, 8, 24])
def test_spans_are_whole_lanes(span):
    with pytest.raises(InputError, match="multiple of 16"):
        Rounding(4, "span", span=span)
    with pytest.raises(InputError, match="table"):
        Rounding(4, "row", span=16)


class Reads(nn.Module):
    """Computes with the rows of a table itself."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 32)

    def forward(self, ids):
        return self.table(ids) @ self.table.weight.t()


def net():
    torch.manual_seed(0)
    made = nn.Sequential(nn.Embedding(20, 32), nn.Linear(32, 4))
    round_layer(made[0], "int4")
    return made.eval()


@pytest.mark.parametrize("to", ["int8", "int4"])
def test_compile_save_and_load(to, tmp_path):
    made = net()
    round_layer(made[0], to)
    ids = torch.arange(20).view(4, 5)
    fast = gossamer.compile(made)
    assert isinstance(fast[0], GridTable)
    assert torch.equal(fast(ids), made(ids))
    assert "on a grid" in str(gossamer.explain(fast))
    assert fast[0].weight.dtype is torch.float32
    (tmp_path / "plain").mkdir()
    (tmp_path / "fast").mkdir()
    gossamer.save(made, tmp_path / "plain/net")
    gossamer.save(fast, tmp_path / "fast/net")
    for path in (tmp_path / "plain/net").iterdir():
        assert path.read_bytes() == (tmp_path / "fast/net" / path.name).read_bytes(), path.name
    again = gossamer.compile(gossamer.load(tmp_path / "fast/net"))
    assert isinstance(again[0], GridTable)
    assert torch.equal(again(ids), made(ids))


def test_a_model_that_reads_the_rows_keeps_its_table():
    model = Reads().eval()
    round_layer(model.table, "int4")
    ids = torch.tensor([[1, 2]])
    with pytest.raises(WeightIsPacked, match="example"):
        gossamer.compile(model)(ids)
    fast = gossamer.compile(model, example=ids)
    assert torch.equal(fast(ids), model(ids))


def test_a_tied_table_stays_one_copy():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(20, 32), nn.Linear(32, 20, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.table(ids))

    model = Tied().eval()
    round_layer(model.table, "int4")
    fast = gossamer.compile(model)
    assert type(fast.table) is nn.Embedding  # the head multiplies with it
    ids = torch.tensor([[1, 2]])
    assert torch.equal(fast(ids), model(ids))


def test_traced_lookups_know_spans():
    packed = gridded(net()[0])
    ids = torch.tensor([[3, 4, 3]])
    traced = torch.export.export(packed, (ids,)).module()
    assert torch.equal(traced(torch.tensor([[5, 5, 6]])), packed(torch.tensor([[5, 5, 6]])))
