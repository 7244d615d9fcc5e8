# SPDX-License-Identifier: Apache-2.0
"""Hostile indices (F12) inside artifacts whose digests all match: refused by every format.

The refusal must come from the index invariants: an attacker can recompute any digest.
"""

from collections.abc import Callable

import pytest
import torch
from artifact_tools import (
    FORMAT_CASES,
    edit_manifest,
    exchange_arrays,
    force_format,
    replace_arrays,
    sparse_linear,
)
from older_arrays import OLDER
from safetensors.torch import load_file
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io import load, save

Arrays = dict[str, torch.Tensor]
Change = Callable[[Arrays], None]


def at(name: str, index: tuple[int, ...] | int, value: int) -> Change:
    def apply(arrays: Arrays) -> None:
        arrays[name][index] = value

    return apply


def swap(name: str, first: tuple[int, ...] | int, second: tuple[int, ...] | int) -> Change:
    def apply(arrays: Arrays) -> None:
        held = arrays[name][first].clone()
        arrays[name][first] = arrays[name][second]
        arrays[name][second] = held

    return apply


def copied(name: str, source: tuple[int, ...] | int, target: tuple[int, ...] | int) -> Change:
    def apply(arrays: Arrays) -> None:
        arrays[name][target] = arrays[name][source]

    return apply


def shorter(name: str) -> Change:
    return lambda arrays: arrays.update({name: arrays[name][:-1].contiguous()})


def longer(name: str) -> Change:
    return lambda arrays: arrays.update({name: torch.cat([arrays[name], arrays[name][-1:]])})


def cast(name: str, dtype: torch.dtype) -> Change:
    return lambda arrays: arrays.update({name: arrays[name].to(dtype)})


def flat(name: str) -> Change:
    return lambda arrays: arrays.update({name: arrays[name].reshape(-1)})


def first_row_of_two(arrays: Arrays) -> tuple[int, int]:
    """Entries of one csr row that keeps at least two weights."""
    counts = arrays["row_pointers"].long().diff()
    row = int((counts >= 2).nonzero()[0])
    start = int(arrays["row_pointers"][row])
    return start, start + 1


def csr_unsorted(arrays: Arrays) -> None:
    first, second = first_row_of_two(arrays)
    swap("columns", first, second)(arrays)


def csr_duplicate(arrays: Arrays) -> None:
    first, second = first_row_of_two(arrays)
    copied("columns", first, second)(arrays)


def spare_bit(name: str) -> Change:
    def apply(arrays: Arrays) -> None:
        arrays[name].view(-1)[-1] |= 0x80

    return apply


CASES: dict[str, dict[str, Change]] = {
    "bitmask": {
        "one-more-bit": lambda arrays: arrays["bitmask"].fill_(255),
        "no-bits": lambda arrays: arrays["bitmask"].zero_(),
        "mask-too-short": shorter("bitmask"),
        "mask-too-wide": lambda arrays: arrays.update(
            bitmask=torch.nn.functional.pad(arrays["bitmask"], (0, 1))
        ),
        "mask-of-other-type": cast("bitmask", torch.int8),
        "mask-flat": flat("bitmask"),
        "values-too-short": shorter("values"),
        "values-too-long": longer("values"),
        "values-as-matrix": lambda arrays: arrays.update(values=arrays["values"].view(2, -1)),
    },
    "csr": {
        "column-out-of-range": at("columns", 0, 256),
        "column-far-out": at("columns", -1, 65535),
        "columns-unsorted": csr_unsorted,
        "columns-duplicate": csr_duplicate,
        "pointers-decrease": swap("row_pointers", 0, -1),
        "pointer-negative": at("row_pointers", 1, -1),
        "pointer-beyond": at("row_pointers", 3, 2**31 - 1),
        "pointers-start-late": at("row_pointers", 0, 1),
        "pointers-end-early": at("row_pointers", -1, 0),
        "pointers-too-short": shorter("row_pointers"),
        "columns-too-short": shorter("columns"),
        "columns-too-long": longer("columns"),
        "columns-signed": cast("columns", torch.int16),
        "pointers-wide": cast("row_pointers", torch.int64),
        "values-too-short": shorter("values"),
    },
    "nm": {
        "choice-outside": lambda arrays: arrays["choices"].fill_(0xFF),
        "choices-too-short": shorter("choices"),
        "choices-too-long": longer("choices"),
        "choices-as-matrix": lambda arrays: arrays.update(choices=arrays["choices"].view(1, -1)),
        "choices-of-other-type": cast("choices", torch.int8),
        "values-too-short": shorter("values"),
        "values-flat": flat("values"),
    },
    "vnm": {
        "shared-duplicate": lambda arrays: arrays["shared"].zero_(),
        "shared-unsorted": lambda arrays: arrays["shared"].copy_(arrays["shared"].flip(0)),
        "shared-too-short": shorter("shared"),
        "shared-of-other-type": cast("shared", torch.int16),
        "positions-duplicate": lambda arrays: arrays["positions"].fill_(0),
        "positions-decrease": lambda arrays: arrays["positions"].fill_(0b0001_0001),
        "positions-too-short": shorter("positions"),
        "values-too-short": shorter("values"),
    },
    "nmg": {
        "choice-outside": lambda arrays: arrays["choices"].fill_(0xFF),
        "one-pattern-for-all": lambda arrays: arrays["choices"].zero_(),
        "choices-too-short": shorter("choices"),
        "choices-of-other-type": cast("choices", torch.int16),
        "values-too-short": shorter("values"),
    },
    # Arrays of files that were written before choices took their fewest bits.
    "older nm": {
        "positions-duplicate": lambda arrays: arrays["positions"].fill_(0x33),
        "positions-decrease": lambda arrays: arrays["positions"].fill_(0x12),
        "positions-too-short": shorter("positions"),
        "positions-flat": flat("positions"),
        "positions-of-other-type": cast("positions", torch.int8),
        "values-too-short": shorter("values"),
        "values-flat": flat("values"),
    },
    "older vnm": {
        "column-out-of-range": at("columns", (0, 0, 3), 8),
        "column-far-out": at("columns", (0, 0, 3), 255),
        "columns-duplicate": copied("columns", (0, 0, 0), (0, 0, 1)),
        "columns-unsorted": swap("columns", (0, 0, 0), (0, 0, 1)),
        "columns-too-short": shorter("columns"),
        "positions-duplicate": lambda arrays: arrays["positions"].fill_(0),
        "positions-decrease": lambda arrays: arrays["positions"].fill_(0b0001_0001),
        "positions-too-short": shorter("positions"),
        "values-too-short": shorter("values"),
    },
    "older nmg": {
        "column-out-of-range": at("columns", (0, 0, 0, 1), 12),
        "column-far-out": at("columns", (0, 0, 0, 1), 32767),
        "column-negative": at("columns", (0, 0, 0, 0), -1),
        "columns-duplicate": copied("columns", (0, 0, 0, 0), (0, 0, 0, 1)),
        "columns-unsorted": swap("columns", (0, 0, 0, 0), (0, 0, 0, 1)),
        "column-in-two-patterns": lambda arrays: arrays["columns"][0, 0].copy_(
            arrays["columns"][0, 0, :1].expand(6, 2)
        ),
        "columns-too-short": shorter("columns"),
        "columns-of-other-type": cast("columns", torch.int32),
        "values-too-short": shorter("values"),
    },
    "block": {
        "column-out-of-range": at("block_columns", 0, 6),
        "column-negative": at("block_columns", 0, -1),
        "column-far-out": at("block_columns", 0, 2**31 - 1),
        "columns-duplicate": lambda arrays: arrays["block_columns"].fill_(0),
        "pointers-decrease": swap("block_row_pointers", 0, -1),
        "pointer-negative": at("block_row_pointers", 1, -1),
        "pointer-beyond": at("block_row_pointers", 1, 2**31 - 1),
        "pointers-too-short": shorter("block_row_pointers"),
        "columns-too-short": shorter("block_columns"),
        "values-too-short": shorter("values"),
        "values-flat": flat("values"),
    },
}


def hostile(tmp_path, monkeypatch, format_name: str, holder: str, change: Change):
    name = format_name.removeprefix("older ")
    force_format(monkeypatch, name)
    path = tmp_path / "a"
    layer = sparse_linear(name, holder)
    save(nn.Sequential(layer), path)
    prefix = "0.weight::"
    if name != format_name:
        exchange_arrays(path, "0.weight", OLDER[name](layer.matrix()))
        load(path)
    stored = load_file(next(path.glob("*.safetensors")))
    arrays = {key[len(prefix) :]: data for key, data in stored.items() if key.startswith(prefix)}
    before = {name: data.clone() for name, data in arrays.items()}
    change(arrays)
    assert any(
        before[name].shape != data.shape
        or before[name].dtype != data.dtype
        or not torch.equal(before[name], data)
        for name, data in arrays.items()
    )
    replace_arrays(path, {prefix + name: data for name, data in arrays.items()})
    return path


@pytest.mark.parametrize("holder", ["masked", "compact"])
@pytest.mark.parametrize(
    ("format_name", "case"), [(name, case) for name in CASES for case in CASES[name]]
)
def test_hostile_indices_are_refused_by_the_invariants(
    tmp_path, monkeypatch, format_name, case, holder
):
    path = hostile(tmp_path, monkeypatch, format_name, holder, CASES[format_name][case])
    with pytest.raises(ArtifactError, match=r"tensor '0\.weight'") as caught:
        load(path)
    assert "digest" not in str(caught.value)
    assert "SHA-256" not in str(caught.value)


def test_every_format_has_cases():
    assert set(CASES) == set(FORMAT_CASES) | {f"older {name}" for name in OLDER}


def odd_shape(tmp_path, format_name: str, monkeypatch, shape: tuple[int, int], pattern: str):
    from gossamer.nn import MaskedLinear
    from gossamer.patterns import parse_pattern

    force_format(monkeypatch, format_name)
    linear = nn.Linear(shape[1], shape[0])
    parsed = parse_pattern(pattern)
    density = 0.5 if parsed.fixed_density is None else None
    mask = parsed.project(linear.weight.detach().abs(), density)
    path = tmp_path / "a"
    save(nn.Sequential(MaskedLinear.from_dense(linear, mask, parsed)), path)
    return path


@pytest.mark.parametrize(
    ("format_name", "array", "shape", "pattern"),
    [
        ("bitmask", "bitmask", (4, 9), "unstructured"),
        ("nm", "choices", (4, 16), "2:16"),
        ("vnm", "positions", (8, 8), "8:2:8"),
        ("vnm", "shared", (8, 8), "8:2:8"),
        ("nmg", "choices", (4, 6), "nmg:2:4:1"),
    ],
)
def test_dirty_padding_bits_are_refused(tmp_path, monkeypatch, format_name, array, shape, pattern):
    path = odd_shape(tmp_path, format_name, monkeypatch, shape, pattern)
    key = f"0.weight::{array}"
    stored = load_file(next(path.glob("*.safetensors")))
    stored[key].view(-1)[-1] |= 0x80
    replace_arrays(path, {key: stored[key]})
    with pytest.raises(ArtifactError, match="padding bits"):
        load(path)


def test_position_beyond_the_group_is_refused(tmp_path, monkeypatch):
    path = odd_shape(tmp_path, "nm", monkeypatch, (2, 4), "2:4")
    values = load_file(next(path.glob("*.safetensors")))["0.weight::values"]
    positions = torch.full((2, 1), 0x41, dtype=torch.uint8)
    exchange_arrays(path, "0.weight", {"values": values, "positions": positions})
    with pytest.raises(ArtifactError, match=r"position 4.*outside 0 to 3"):
        load(path)


def test_valid_arrays_of_another_mask_are_refused_by_the_mask_digest(tmp_path, monkeypatch):
    force_format(monkeypatch, "bitmask")
    path = tmp_path / "a"
    layer = sparse_linear("bitmask", "compact")
    save(nn.Sequential(layer), path)
    flipped = layer.mask_bits.flip(0)
    replace_arrays(path, {"0.weight::bitmask": flipped})
    with pytest.raises(ArtifactError, match="does not match the digest"):
        load(path)
    from gossamer.formats import Positions

    digest = Positions(flipped, layer.matrix_shape).digest
    edit_manifest(path, lambda m: m["tensors"]["0.weight"]["mask"].update(sha256=digest))
    assert torch.equal(load(path)[0].mask_bits, flipped)


def test_tied_masks_are_validated(tmp_path):
    from gossamer.nn import MaskedLinear
    from gossamer.patterns import NM

    out, tokens = nn.Linear(12, 10), nn.Embedding(10, 12)
    out.weight = tokens.weight
    mask = torch.zeros(10, 12, dtype=torch.bool)
    mask[:, ::2] = True
    model = nn.ModuleDict({"tokens": tokens, "out": MaskedLinear.from_dense(out, mask, NM(2, 4))})
    save(model, tmp_path / "a")
    assert torch.equal(load(tmp_path / "a")["out"].mask(), mask)
    key = "out.weight::mask_bits"
    for bits, text in ((0xFF, "padding bits"), (0x0F, "keeps exactly 2 of 4")):
        replace_arrays(tmp_path / "a", {key: torch.full((10, 2), bits, dtype=torch.uint8)})
        with pytest.raises(ArtifactError, match=text):
            load(tmp_path / "a")
