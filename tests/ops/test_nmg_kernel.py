import pytest
import torch
from shared_columns import check_against_float64, matrix, same_bits_on_two_threads

from gossamer.formats import Positions, SparseMatrix
from gossamer.formats.bits import pack_bits
from gossamer.ops import Problem, _native
from gossamer.ops.kernels import available_kernels
from gossamer.ops.linear.packed_weight import pack_weight
from gossamer.ops.linear.shared_columns import KERNELS, pack_nmg
from gossamer.patterns import parse_pattern


def problem(weight, mask, pattern):
    return Problem(SparseMatrix.from_dense(weight, mask, pattern))


def nmg_layer(text, down, across, seed=0):
    """`down` by `across` tiles; each uses all choices of rows equally often, in random order."""
    pattern = parse_pattern(text)
    generator = torch.Generator().manual_seed(seed)
    members = torch.zeros(pattern.num_row_patterns, pattern.group, dtype=torch.bool)
    members.scatter_(1, pattern.row_patterns(), True)
    ids = torch.arange(pattern.num_row_patterns).repeat(pattern.repeats)
    shuffled = [ids[torch.randperm(len(ids), generator=generator)] for _ in range(down * across)]
    shape = (down * pattern.group, across * pattern.tile_columns)
    tiles = torch.stack(shuffled) if shuffled else ids.new_zeros(0, len(ids))
    mask = pattern.untiled(members[tiles], shape)
    return torch.randn(shape, generator=generator) * mask, mask


def packed(text, weight, mask):
    # Not through from_dense, which would refuse masks that break the pattern.
    positions = Positions(pack_bits(mask), tuple(mask.shape), parse_pattern(text))
    return pack_nmg(SparseMatrix(positions, weight[mask]))


def check(text, down, across, tokens, activation="none"):
    weight, mask = nmg_layer(text, down, across)
    layer = packed(text, weight, mask)
    assert layer.nnz == int(mask.sum())
    x, bias = torch.randn(tokens, weight.shape[1]), torch.randn(weight.shape[0])
    check_against_float64(layer, weight, mask, x, bias, activation)
    check_against_float64(layer, weight, mask, x, None, activation)


@pytest.fixture(params=available_kernels())
def kernels(request, monkeypatch):
    monkeypatch.setenv("GOSSAMER_KERNELS", request.param)
    return request.param


@pytest.mark.parametrize("text", ["nmg:2:4:3", "nmg:3:5:2", "nmg:4:6:2"])
def test_every_token_remainder(kernels, text):
    for tokens in (0, 1, 7, 8, 9, 24, 25, 32, 33, 63, 64, 65, 100):
        check(text, 3, 2, tokens)


EDGES = "2:2:1 2:3:7 2:4:100 2:8:4 2:22:1 3:3:1 3:6:30 3:12:1 4:4:2 4:9:1"


@pytest.mark.parametrize("text", [f"nmg:{numbers}" for numbers in EDGES.split()])
def test_every_pattern_and_tile_count(kernels, text):
    for down, across in ((0, 1), (1, 0), (1, 1), (5, 2), (40, 1)):
        check(text, down, across, 19)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_activations(kernels, activation):
    check("nmg:2:4:4", 10, 3, 50, activation)


def test_strided_activations():
    weight, mask = nmg_layer("nmg:2:4:4", 6, 2)
    layer, wide = packed("nmg:2:4:4", weight, mask), torch.randn(5, 6, 96)
    for x in (wide[..., :48], wide[..., ::2], wide.transpose(0, 1)[..., 48:]):
        check_against_float64(layer, weight, mask, x, torch.randn(24))


def test_threads_do_not_change_a_bit():
    weight, mask = nmg_layer("nmg:2:4:16", 150, 3)
    assert same_bits_on_two_threads(packed("nmg:2:4:16", weight, mask), 288)


def test_kernel_accepts_what_shares_columns():
    kernel = KERNELS[1]
    for text, wanted in (
        ("nmg:2:4:4", True),
        ("nmg:4:6:2", True),
        ("nmg:1:4:4", False),
        ("nmg:5:6:2", False),
    ):
        weight, mask = nmg_layer(text, 2, 2)
        sparse = problem(weight, mask, parse_pattern(text))
        assert kernel.accepts(sparse) is wanted
        if wanted:
            x = torch.randn(9, weight.shape[1])
            check_against_float64(kernel.pack(sparse), weight, mask, x)
    dense = torch.randn(4, 6)
    everything = torch.ones(4, 6, dtype=torch.bool)
    assert not kernel.accepts(problem(dense, everything, parse_pattern("unstructured")))


def test_masks_without_the_structure_are_refused():
    weight, mask = nmg_layer("nmg:2:4:2", 2, 1)
    fewer = mask.clone()
    fewer[5, 7] = False
    fewer[4:8, 7][mask[4:8, 7].nonzero()[0]] = False
    with pytest.raises(ValueError, match=r"nmg:2:4:2: .* of rows 4 to 7 in column 7, expected 2"):
        packed("nmg:2:4:2", weight * fewer, fewer)
    unequal = mask.clone()
    other = next(k for k in range(1, 12) if not torch.equal(mask[:4, k], mask[:4, 0]))
    unequal[:4, other] = mask[:4, 0]
    with pytest.raises(ValueError, match=r"each choice of rows in 2 columns .* row 0, column 0"):
        packed("nmg:2:4:2", torch.randn(8, 12) * unequal, unequal)


@pytest.mark.parametrize(
    ("num_kept", "group", "repeats", "message"),
    [
        (1, 4, 2, "2 <= n <= 4"),
        (5, 6, 2, "2 <= n <= 4"),
        (3, 2, 2, "n <= m"),
        (2, 33, 2, "m <= 32"),
        (4, 32, 1, "256 ways"),
        (2, 4, 0, r"g must be in \[1, 5461\]"),
        (2, 5, 2, "divisible"),
        (2, 4, 3, "divisible"),
        (2, 4, 1 << 62, "g must be in"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(num_kept, group, repeats, message):
    weight, mask = nmg_layer("nmg:2:4:2", 2, 1)
    with pytest.raises(ValueError, match=message):
        pack_weight(
            "nmg",
            _native.pack_nmg,
            matrix(weight, mask),
            num_kept=num_kept,
            group=group,
            repeats=repeats,
        )
