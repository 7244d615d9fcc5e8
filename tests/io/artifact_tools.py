# SPDX-License-Identifier: Apache-2.0
"""Models to save, ways to compare them, and what an attacker does to a saved one."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gossamer.io.safe_files.documents import pretty_json
from gossamer.io.safe_files.manifests import digest_of
from gossamer.nn import Linear, MaskedLinear
from gossamer.nn.surgery import replace_module
from gossamer.patterns import Pattern, Unstructured, parse_pattern

# Each stored format, with a pattern, a density and a shape it can hold.
FORMAT_CASES: dict[str, tuple[str, float | None, tuple[int, int]]] = {
    "bitmask": ("unstructured", 0.5, (24, 48)),
    "csr": ("unstructured", 0.02, (24, 256)),
    "nm": ("2:16", None, (24, 48)),
    "vnm": ("24:2:8", None, (24, 48)),
    "nmg": ("nmg:2:4:2", None, (24, 48)),
    "block": ("block:8x8", 0.3, (24, 48)),
}
PATTERNS = tuple(map(parse_pattern, ("unstructured", "2:4", "8:2:8", "nmg:2:4:2", "block:4x4")))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_linear(
    shape: tuple[int, int], dtype: torch.dtype = torch.float32, bias: bool = True, seed: int = 0
) -> nn.Linear:
    linear = nn.Linear(shape[1], shape[0], bias=bias, dtype=dtype)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(shape, generator=generator(seed)))
    return linear


def mask_for(linear: nn.Linear, pattern: Pattern, density: float | None) -> torch.Tensor:
    return pattern.project(linear.weight.detach().float().abs(), density)


def force_format(monkeypatch: pytest.MonkeyPatch, format_name: str) -> None:
    """Store in `format_name` although another one may be smaller."""
    monkeypatch.setattr("gossamer.io.artifact.packing.choose_format", lambda *_: format_name)


def sparse_linear(
    format_name: str, holder: str, dtype: torch.dtype = torch.float32, seed: int = 0
) -> MaskedLinear | Linear:
    """A layer that `format_name` can store."""
    text, density, shape = FORMAT_CASES[format_name]
    pattern = parse_pattern(text)
    linear = random_linear(shape, dtype, seed=seed)
    mask = mask_for(linear, pattern, density)
    if holder == "compact":
        return Linear.from_dense(linear, mask, pattern)
    return MaskedLinear.from_dense(linear, mask, pattern)


def sparsify(model: nn.Module, holder: str, density: float = 0.25) -> nn.Module:
    """Every nn.Linear of `model` but `head` becomes sparse, unstructured."""
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear and name.split(".")[-1] != "head":
            mask = mask_for(layer, Unstructured(), density)
            build = Linear if holder == "compact" else MaskedLinear
            replace_module(model, layer, build.from_dense(layer, mask, Unstructured()))
    return model


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal as bytes, so NaN equals NaN and -0.0 differs from 0.0."""
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and torch.equal(
            first.detach().contiguous().reshape(-1).view(torch.uint8),
            second.detach().contiguous().reshape(-1).view(torch.uint8),
        )
    )


def assert_same_model(first: nn.Module, second: nn.Module) -> None:
    """Same classes at the same paths and the same state bit by bit."""
    assert [(n, type(m)) for n, m in first.named_modules()] == [
        (n, type(m)) for n, m in second.named_modules()
    ]
    one, two = first.state_dict(), second.state_dict()
    assert list(one) == list(two)
    for name, tensor in one.items():
        assert same_bits(tensor, two[name]), name


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# What an attacker does: everything is possible, and digests are made to match afterwards.


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and recompute its digest."""
    path = folder / "manifest.json"
    content = json.loads(path.read_bytes())
    edit(content)
    content.pop("digest", None)
    path.write_bytes(pretty_json({**content, "digest": digest_of(content)}))


def rehash(folder: Path) -> None:
    """Make sizes and hashes of all listed files match what is there."""

    def update(content: dict[str, Any]) -> None:
        for name in content["files"]:
            raw = (folder / name).read_bytes()
            content["files"][name] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}

    edit_manifest(folder, update)


def split_tensors(raw: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join_tensors(header: dict[str, Any] | bytes, data: bytes) -> bytes:
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(body).to_bytes(8, "little") + body + data


def exchange_arrays(folder: Path, tensor: str, changed: dict[str, torch.Tensor]) -> None:
    """Store a tensor as these arrays and no others."""
    from safetensors.torch import load_file, save_file

    for path in folder.glob("*.safetensors"):
        kept = {k: v for k, v in load_file(path).items() if not k.startswith(f"{tensor}::")}
        kept |= {f"{tensor}::{name}": data.contiguous() for name, data in changed.items()}
        save_file(kept, path)
    edit_manifest(folder, lambda m: m["tensors"][tensor].update(arrays=sorted(changed)))
    rehash(folder)


def replace_arrays(folder: Path, changed: dict[str, torch.Tensor]) -> None:
    """Store other arrays under known keys, of any dtype and shape, with digests that match."""
    from safetensors.torch import load_file, save_file

    for path in folder.glob("*.safetensors"):
        arrays = load_file(path)
        arrays.update({key: data for key, data in changed.items() if key in arrays})
        save_file({key: data.contiguous() for key, data in arrays.items()}, path)
    rehash(folder)
