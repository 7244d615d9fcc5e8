# SPDX-License-Identifier: Apache-2.0
"""Artifacts, checkpoints of other tools and of training runs."""

import json
import random
from pathlib import Path

import torch
from mutations import Files
from target import target, tried, with_hashes
from torch import nn

import gossamer


def artifact_seeds(folder: Path) -> None:
    from artifact_tools import FORMAT_CASES, sparse_linear, sparsify
    from transformers import GPT2Config, GPT2LMHeadModel

    from gossamer.nn import MaskedLinear
    from gossamer.nn.rounding import round_layer
    from gossamer.patterns import Unstructured
    from gossamer.zoo import TinyEncoder

    torch.manual_seed(0)
    for number, name in enumerate(FORMAT_CASES):
        holder = "compact" if number % 2 else "masked"
        gossamer.save(nn.Sequential(sparse_linear(name, holder)), folder / name)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    gossamer.save(model, folder / "dense")
    encoder = TinyEncoder(20, 3, width=16, num_layers=1, ffn_width=16, num_heads=2)
    gossamer.save(sparsify(encoder, "masked"), folder / "zoo")
    for number, to in enumerate(("int8", "int4", "int4_offset")):
        grid = nn.Sequential(sparse_linear("bitmask", "compact"), nn.Linear(64, 24))
        for layer in grid[0 if to != "int4_offset" else 1 :]:
            round_layer(layer, to)
        gossamer.save(grid, folder / to, beside={"vocab.txt": b"a\nb"} if number else None)
    shared = nn.Linear(6, 6)
    gossamer.save(nn.Sequential(shared, nn.ReLU(), shared), folder / "shared")
    plain = nn.Linear(16, 16)
    masked = MaskedLinear.from_dense(nn.Linear(16, 16), torch.rand(16, 16) > 0.5, Unstructured())
    masked.weight = plain.weight
    gossamer.save(nn.Sequential(plain, masked), folder / "tied")
    config = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    gossamer.save(GPT2LMHeadModel(GPT2Config(**config, **ends)).eval(), folder / "transformers")


@target(
    "artifact",
    artifact_seeds,
    "io/artifact/reader.py:load_artifact _skeleton",
    "io/artifact/opened.py:read document config open_artifact _open _check_files open_regular"
    " read_manifest",
    "io/safe_files/manifests.py:parse",
    "io/artifact/agreement.py",
    "io/safe_files/tensors.py:read_header _check_entries _check_entry _integers read_tensors",
    "io/artifact/packing.py:decode_all _decode_sparse _read_codes _decode_mask _check_mask",
    "io/loading.py:read_beside",
    change=with_hashes,
)
def read_artifact(folder: Path) -> object:
    from gossamer.io import read_beside

    tried(lambda: read_beside(folder))
    return gossamer.load(folder)


def manifest_only(files: Files, draw: random.Random) -> Files:
    changed = with_hashes({"manifest.json": files["manifest.json"]}, draw)
    return changed if "manifest.json" in changed else files


@target(
    "manifest",
    artifact_seeds,
    "io/safe_files/manifests.py:parse",
    "io/artifact/manifest.py:_distinct",
    "io/safe_files/documents.py:parse_json parse_json_line canonical_json pretty_json"
    " _check_count _check_depth _unique _finite _whole _refuse_constant _check_texts",
    "io/safe_files/checks.py:check_name check_file_name",
    change=manifest_only,
)
def read_manifest(folder: Path) -> object:
    from gossamer.io.artifact.manifest import Manifest

    return Manifest.parse((folder / "manifest.json").read_bytes())


def checkpoint_seeds(folder: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    weight = torch.randn(8, 16) * (torch.rand(8, 16) > 0.6)
    for name in ("single", "sharded", "pruned"):
        (folder / name).mkdir()
    save_file({"a.weight": weight, "a.bias": torch.zeros(8)}, folder / "single/model.safetensors")
    shards = {"m-1.safetensors": {"a.weight": weight}, "m-2.safetensors": {"b": weight.half()}}
    for file, tensors in shards.items():
        save_file(tensors, folder / "sharded" / file)
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (folder / "sharded/model.safetensors.index.json").write_text(json.dumps(index))
    state = {"l.weight_orig": torch.randn(4, 8), "l.weight_mask": (torch.rand(4, 8) > 0.5).float()}
    save_file(state, folder / "pruned/model.safetensors")


@target(
    "checkpoint",
    checkpoint_seeds,
    "io/pruners/dense_checkpoint.py:read_dense_checkpoint read_tensors_of _files_of _detect as_mask"
    " fold_pruned apply_masks",
    "io/safe_files/tensors.py:read_header _check_entries _check_entry _integers read_tensors",
    "named_files.py:read_inside open_inside read_at_most",
)
def read_checkpoint_folder(folder: Path) -> object:
    from gossamer.io.pruners import read_dense_checkpoint

    return read_dense_checkpoint(folder)


def training_seeds(folder: Path) -> None:
    from gossamer.training.checkpoint import CheckpointStore, Snapshot

    state = {"w": torch.randn(3, 4), "n": 3, "t": (1, 2.5, None), "nan": float("nan"), 7: [True]}
    CheckpointStore(folder).write(Snapshot.of(12, {"recipe": "r"}, state))


@target(
    "training-checkpoint",
    training_seeds,
    "io/safe_files/manifests.py:parse",
    "training/checkpoint/folders.py:read_checkpoint _open_manifest",
    "training/checkpoint/state_tree.py:decode",
    "io/safe_files/tensors.py:read_header _check_entries _check_entry _integers",
    change=with_hashes,
)
def read_training(folder: Path) -> object:
    from gossamer.training.checkpoint import read_checkpoint

    named = folder.with_name("step_00000012")
    folder.rename(named)
    try:
        return read_checkpoint(named)
    finally:
        named.rename(folder)
