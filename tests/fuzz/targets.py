# SPDX-License-Identifier: Apache-2.0
"""Every reader of files, what it is given, and which source lines it should reach.

To add one: write seeds with the package's own writers, a function that reads a case, and the files
of the reader. A reader returns or raises a GossamerError; anything else is a fault.
"""

import copy
import json
import random
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from mutations import Files, change_bytes, change_files, change_value, rehash, scalar
from torch import nn

import gossamer
from gossamer.errors import GossamerError

for _folder in ("io", "run"):
    sys.path.append(str(Path(__file__).parents[1] / _folder))

SOURCE = Path(gossamer.__file__).parent
TEXTS = ("the dog runs", "a red house and the moon", "zzz é \U0001f600")


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        name: for the command line.
        seeds: writes good inputs into a folder: every folder in it is one.
        read: reads the files of a case, which lie in a folder.
        sources: files below src/gossamer whose line coverage is told; `file.py:one two` counts
            these functions only, where a file holds a writer too.
        change: makes a case of a seed.
        megabytes: a case may take so much more memory than the process had before.
    """

    name: str
    seeds: Callable[[Path], None]
    read: Callable[[Path], object]
    sources: tuple[str, ...]
    change: Callable[[Files, random.Random], Files] = change_files
    megabytes: int = 256

    @property
    def functions(self) -> dict[Path, set[str] | None]:
        """The reader's source files and its functions in them; None for all."""
        found: dict[Path, set[str] | None] = {}
        for source in self.sources:
            name, _, names = source.partition(":")
            for path in sorted(SOURCE.glob(name)):
                found[path] = set(names.split()) or None
        return found


TARGETS: dict[str, Target] = {}


def target(name: str, seeds: Callable[[Path], None], *sources: str, **more: Any) -> Any:
    """Put a reader into the table."""

    def add(read: Callable[[Path], object]) -> Callable[[Path], object]:
        TARGETS[name] = Target(name, seeds, read, sources, **more)
        return read

    return add


def with_hashes(files: Files, draw: random.Random) -> Files:
    """Most cases get the right digests again, so that what comes after them is reached."""
    changed = change_files(files, draw)
    return rehash(changed) if draw.random() < 0.8 else changed


# Artifacts and checkpoints.


def artifact_seeds(folder: Path) -> None:
    from artifact_tools import FORMAT_CASES, sparse_linear, sparsify
    from transformers import GPT2Config, GPT2LMHeadModel

    from gossamer.zoo import TinyEncoder

    torch.manual_seed(0)
    for number, name in enumerate(FORMAT_CASES):
        holder = "compact" if number % 2 else "masked"
        gossamer.save(nn.Sequential(sparse_linear(name, holder)), folder / name)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    gossamer.save(model, folder / "dense")
    encoder = TinyEncoder(20, 3, width=16, num_layers=1, ffn_width=16, num_heads=2)
    gossamer.save(sparsify(encoder, "masked"), folder / "zoo")
    grid = nn.Linear(16, 8)
    with torch.no_grad():
        grid.weight.copy_((torch.randn(8, 16) * 20).round().clamp(-100, 100) / 64)
    gossamer.save(nn.Sequential(grid), folder / "grid", beside={"vocab.txt": b"a\nb"})
    shared = nn.Linear(6, 6)
    gossamer.save(nn.Sequential(shared, nn.ReLU(), shared), folder / "shared")
    tied = nn.Sequential(nn.Linear(8, 8), sparse_linear("bitmask", "masked"), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    gossamer.save(tied, folder / "tied")
    config = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    gossamer.save(GPT2LMHeadModel(GPT2Config(**config, **ends)).eval(), folder / "transformers")


@target(
    "artifact", artifact_seeds, "io/reader.py:_load_artifact _skeleton _max_tensors",
    "io/opened.py:read document config open_artifact _open _check_files open_regular read_manifest"
    " _read_document", "io/manifest.py:checked_content parse_manifest _faults _place _named",
    "io/agreement.py", "io/tensor_header.py:read_header _check_entries _check_metadata _check_entry"
    " _integers", "io/tensor_file.py:read_tensors", "io/decode.py",
    "io/codes.py:check_coded stored_arrays decode_codes", "io/beside.py:read_beside",
    change=with_hashes,
)  # fmt: skip
def read_artifact(folder: Path) -> object:
    from gossamer.io import read_beside

    _tried(lambda: read_beside(folder))
    return gossamer.load(folder)


def manifest_only(files: Files, draw: random.Random) -> Files:
    return with_hashes({"manifest.json": files["manifest.json"]}, draw)


@target(
    "manifest", artifact_seeds, "io/manifest.py:checked_content parse_manifest _faults _place"
    " _named _distinct", "io/strict_json.py", "io/limits.py:check_name check_file_name",
    change=manifest_only,
)  # fmt: skip
def read_manifest(folder: Path) -> object:
    from gossamer.io.manifest import parse_manifest

    return parse_manifest(_only(folder).read_bytes())


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
    "checkpoint", checkpoint_seeds, "io/dense_checkpoint.py:read_dense_checkpoint read_tensors_of"
    " _read_files _files_of _read_index _detect", "io/tensor_header.py", "io/stored_masks.py",
    "io/tensor_file.py:read_tensors", "named_files.py:read_inside open_inside read_at_most",
)  # fmt: skip
def read_checkpoint_folder(folder: Path) -> object:
    from gossamer.io import read_dense_checkpoint

    return read_dense_checkpoint(folder)


def training_seeds(folder: Path) -> None:
    from gossamer.train.checkpoint import CheckpointStore, Snapshot

    state = {"w": torch.randn(3, 4), "n": 3, "t": (1, 2.5, None), "nan": float("nan"), 7: [True]}
    CheckpointStore(folder).write(Snapshot.of(12, {"recipe": "r"}, state))


@target(
    "training-checkpoint", training_seeds, "train/checkpoint_manifest.py:parse_manifest",
    "train/checkpoint.py:read_checkpoint _open_manifest", "train/state_tree.py:decode _is_item",
    "io/tensor_header.py:read_header _check_entries _check_metadata _check_entry _integers",
    change=with_hashes,
)  # fmt: skip
def read_training(folder: Path) -> object:
    from gossamer.train.checkpoint import read_checkpoint

    named = folder.with_name("step_00000012")
    folder.rename(named)
    try:
        return read_checkpoint(named)
    finally:
        named.rename(folder)


# Files of other tools.


def huggingface_seeds(folder: Path) -> None:
    from text_models import save_classifier, save_decoder, save_encoder
    from transformers import GPT2Config, GPT2LMHeadModel

    save_encoder(folder / "encoder")
    save_classifier(folder / "classifier")
    save_decoder(folder / "decoder")
    config = GPT2Config(
        vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")
    for path in folder.glob("*/generation_config.json"):
        path.unlink()


def config_and_weights(files: Files, draw: random.Random) -> Files:
    """What the model reader looks at; the configuration most of the time."""
    keep = {name: raw for name, raw in files.items() if name.endswith((".safetensors", "fig.json"))}
    if draw.random() < 0.6:
        changed = change_files({"config.json": keep["config.json"]}, draw)
        return {**keep, **changed}
    return change_files(keep, draw)


@target(
    "huggingface", huggingface_seeds, "io/huggingface.py", "io/transformers_models.py",
    "io/dry_run.py", change=config_and_weights,
)  # fmt: skip
def read_huggingface(folder: Path) -> object:
    from gossamer.io import load_pretrained

    model: Any = load_pretrained(folder)
    with torch.no_grad():
        # What loads must run.
        return model(torch.zeros(1, 2, dtype=torch.int64))[0]


def compressed_seeds(folder: Path) -> None:
    from text_models import save_decoder

    from gossamer.io import load_pretrained, save_compressed_tensors

    save_decoder(folder / "source")
    model = load_pretrained(folder / "source")
    gossamer.sparsify(model, sparsity=0.5)
    save_compressed_tensors(model, folder / "compressed")
    for path in (folder / "source").iterdir():
        path.unlink()
    (folder / "source").rmdir()


def headers_first(files: Files, draw: random.Random) -> Files:
    """Quantisation settings and tensor headers."""
    name = draw.choice(("config.json", "model.safetensors", "model.safetensors"))
    return {**files, **change_files({name: files[name]}, draw)}


@target(
    "compressed-tensors", compressed_seeds, "io/compressed_tensors.py",
    change=headers_first,
)  # fmt: skip
def read_compressed(folder: Path) -> object:
    from gossamer.io.compressed_tensors import expand_bitmasks
    from gossamer.io.dense_checkpoint import read_tensors_of
    from gossamer.io.huggingface import _read_config

    tensors = read_tensors_of(folder)
    return expand_bitmasks(tensors, _read_config(folder), str(folder))


def gguf_seeds(folder: Path) -> None:
    from gguf_tools import tiny_gguf

    (folder / "llama").mkdir()
    tiny_gguf().write(folder / "llama" / "m.gguf")


_GGUF: list[Any] = []


def change_gguf(files: Files, draw: random.Random) -> Files:
    """Settings, types, shapes and offsets in a file that is whole again; or its first bytes."""
    from gguf_tools import tiny_gguf

    if draw.random() < 0.4:
        raw = files["m.gguf"]
        return {"m.gguf": change_bytes(raw[:6000], draw) + raw[6000:]}
    if not _GGUF:
        _GGUF.append(tiny_gguf())
    made = copy.deepcopy(_GGUF[0])
    for _ in range(draw.choice((1, 1, 2))):
        _change_gguf_field(made, draw)
    try:
        return {"m.gguf": b"".join(made.header_and_data())}
    except (ValueError, TypeError, OverflowError, AttributeError, KeyError, IndexError):
        return {"m.gguf": change_bytes(files["m.gguf"], draw)}
    except Exception as error:
        if type(error).__name__ == "error":  # struct.error: a value that its type cannot hold
            return {"m.gguf": change_bytes(files["m.gguf"], draw)}
        raise


def _change_gguf_field(made: Any, draw: random.Random) -> None:
    key = draw.choice(sorted(made.settings))
    tensor = draw.choice(made.tensors)
    kind = draw.randrange(8)
    if kind < 3:
        code, value, *of = made.settings[key]
        if isinstance(value, list):
            value = list(value)
            place = draw.randrange(len(value))
            new = scalar(draw)
            value[place] = new if draw.random() < 0.5 else value[0]
            if draw.random() < 0.3:
                del value[place:]
        else:
            value = scalar(draw)
        made.settings[key] = (code, value, *of)
    elif kind == 3:
        del made.settings[key]
    elif kind == 4:
        sizes = list(tensor.shape)
        sizes[draw.randrange(len(sizes))] = draw.choice((0, 1, 31, 64, 2**20, 2**40, 2**63))
        tensor.shape = tuple(sizes)
    elif kind == 5:
        tensor.kind = draw.choice((0, 1, 2, 3, 8, 12, 14, 30, 99))
    elif kind == 6:
        tensor.offset = draw.choice((0, 1, 32, 2**20, 2**63))
    else:
        tensor.name = draw.choice((made.tensors[0].name, "x", "", "..", "blk.0.attn_q.weight"))


@target("gguf", gguf_seeds, "io/gguf_*.py", change=change_gguf)
def read_gguf(folder: Path) -> object:
    from gossamer.io import load_gguf, read_beside

    path = folder / "m.gguf"
    # Both read the header; a fault of the one must not hide the other.
    _tried(lambda: read_beside(path))
    if zlib.crc32(path.read_bytes()) % 20 == 0:
        return load_gguf(path)
    # Building the model is the reader of Hugging Face directories, and takes most of the time.
    with patch("gossamer.io.gguf_file.from_tensors"):
        return load_gguf(path)


def onnx_seeds(folder: Path) -> None:
    import onnx
    from onnx_tools import Maker, bert_file
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    for name in ("linear", "conv", "bert", "quantised"):
        (folder / name).mkdir()
    make = Maker(14)
    x = make.op("MatMul", make.input("x", ["n", 4]), make.const(np.ones((4, 3)), "w", "float32"))
    make.result(make.op("Softmax", make.op("Relu", x), axis=-1), "y")
    make.write(folder / "linear" / "m.onnx")
    make = Maker(13)
    x = make.input("x", ["n", 1, 6, 6])
    weight = make.const(np.ones((2, 1, 3, 3)), "c", "float32")
    x = make.op("Conv", x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    x = make.op("MaxPool", x, kernel_shape=[2, 2])
    x = make.op("Reshape", x, make.const(np.array([0, -1]), "shape", "int64"))
    make.result(make.op("Clip", x, make.const(np.array(0.0), "low", "float32")), "y")
    make.write(folder / "conv" / "m.onnx")
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )  # fmt: skip
    bert_file(BertModel(config), folder / "bert" / "m.onnx")
    make = Maker(13)
    x = make.input("x", ["n", 4])
    codes = make.const(np.ones((4, 3)), "q", "int8")
    scale, zero = make.const(np.array(0.1), "s", "float32"), make.const(np.array(0), "z", "int8")
    rounded = make.op("QuantizeLinear", x, scale, zero)
    x = make.op("DequantizeLinear", rounded, scale, zero)
    make.result(make.op("MatMul", x, make.op("DequantizeLinear", codes, scale, zero)), "y")
    make.write(folder / "quantised" / "m.onnx")
    (folder / "integer").mkdir()
    make = Maker(11)
    rounded, scale, zero = make.op("DynamicQuantizeLinear", make.input("x", ["n", 4]), outputs=3)
    codes = make.const(np.ones((4, 3)), "q", "int8")
    product = make.op("MatMulInteger", rounded, codes, zero, make.const(np.array(0), "z", "int8"))
    real = make.op("Cast", product, to=1)
    scales = make.op("Mul", scale, make.const(np.array(0.1), "s", "float32"))
    make.result(make.op("Mul", real, scales), "y")
    make.write(folder / "integer" / "m.onnx")
    _more_onnx_seeds(folder)
    (folder / "outside").mkdir()
    onnx.save(
        onnx.load(folder / "linear" / "m.onnx"), folder / "outside" / "m.onnx",
        save_as_external_data=True, location="w.bin", size_threshold=0,
    )  # fmt: skip


def _more_onnx_seeds(folder: Path) -> None:
    """Operators that are rewritten, and tensors that are stored in other ways."""
    from onnx import TensorProto, helper
    from onnx_tools import Maker

    def write(make: Maker, value: str, name: str, kind: str = "float32") -> None:
        make.result(value, "y", kind)
        (folder / name).mkdir()
        make.write(folder / name / "m.onnx")

    def ones(*shape: int) -> np.ndarray:
        return np.ones(shape)

    make = Maker(11)
    x = make.op(
        "Conv", make.input("x", ["n", 1, 4, 4]), make.const(ones(2, 1, 1, 1), "c", "float32")
    )
    statistics = [make.const(ones(2), name, "float32") for name in ("g", "b", "m", "v")]
    x = make.op("BatchNormalization", x, *statistics, epsilon=1e-3, momentum=0.9)
    x = make.op("LogSoftmax", make.op("Flatten", make.op("GlobalAveragePool", x)))
    weights = make.const(ones(3, 2), "w", "float32"), make.const(ones(3), "d", "float32")
    write(make, make.op("Gemm", x, *weights, transB=1, alpha=0.5, beta=2.0), "norms")
    make = Maker(17)
    gain, shift = (make.const(ones(4), name, "float32") for name in ("g", "b"))
    x = make.op("LayerNormalization", make.input("x", ["n", 4]), gain, shift, epsilon=1e-6)
    low, high = make.op("Split", x, make.const(np.array([2, 2]), "cut", "int64"), outputs=2, axis=1)
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])
    plain = make.op("Constant", value=tensor), make.op("Constant", value_float=2.0)
    write(
        make,
        make.op("Concat", make.op("Mul", low, plain[0]), make.op("Add", high, plain[1]), axis=1),
        "constants",
    )
    make = Maker(13)
    codes, unit = make.const(ones(4, 3), "q", "int8"), make.const(np.array(0.1), "s", "float32")
    zero = make.const(np.array(0), "z", "int8")
    x = make.op("QuantizeLinear", make.input("x", ["n", 4]), unit, zero)
    x = make.op("QLinearMatMul", x, unit, zero, codes, unit, zero, unit, zero)
    write(make, make.op("DequantizeLinear", x, unit, zero), "product")
    make = Maker(13)
    unit, zero = make.const(np.array(0.1), "s", "float32"), make.const(np.array(0), "z", "int8")
    x = make.op("QuantizeLinear", make.input("x", ["n", 1, 4, 4]), unit, zero)
    kernel, bias = make.const(ones(2, 1, 3, 3), "q", "int8"), make.const(ones(2), "b", "int32")
    x = make.op("QLinearConv", x, unit, zero, kernel, unit, zero, unit, zero, bias)
    write(make, make.op("DequantizeLinear", x, unit, zero), "convolution")
    make = Maker(13)
    make.result(make.op("MatMul", make.input("x", ["n", 4]), "w"), "y")
    model = make.model()
    values = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    places = helper.make_tensor("p", TensorProto.INT64, [3], [0, 5, 11])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4, 3]))
    (folder / "sparse").mkdir()
    (folder / "sparse" / "m.onnx").write_bytes(model.SerializeToString())


@target("onnx", onnx_seeds, "io/onnx_[!e]*.py")
def read_onnx(folder: Path) -> object:
    from gossamer.io import load_onnx

    return load_onnx(folder / "m.onnx")


# Recipes and descriptions.


def yaml_seeds(part: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for path in sorted((SOURCE / part).rglob("*.yaml")):
            (folder / path.stem).mkdir()
            (folder / path.stem / "r.yaml").write_bytes(path.read_bytes())

    return write


@target(
    "recipe", yaml_seeds("recipes"), "recipes/loader.py", "recipes/yaml_lines.py",
    "recipes/wording.py", "recipes/variables.py",
)  # fmt: skip
def read_recipe(folder: Path) -> object:
    from gossamer.recipes.loader import load_recipe

    return load_recipe(folder / "r.yaml")


@target(
    "cluster", yaml_seeds("planner"), "planner/cluster_loader.py", "planner/cluster_schema.py",
    "recipes/yaml_lines.py",
)  # fmt: skip
def read_cluster(folder: Path) -> object:
    from gossamer.planner.cluster_loader import load_cluster

    return load_cluster(folder / "r.yaml")


# Data.


def sample_seeds(folder: Path) -> None:
    from safetensors.torch import save_file

    def put(name: str, text: str) -> None:
        (folder / name.replace(".", "-")).mkdir()
        (folder / name.replace(".", "-") / name).write_text(text)

    put("a.txt", "one line\ntwo lines\n\nand more\n")
    put("b.jsonl", '{"text": "good", "label": 1}\n{"text": "bad", "label": 0}\n')
    put("c.jsonl", '{"text_a": "x", "text_b": "y", "score": 3.5}\n{"text": "plain"}\n')
    put("d.csv", 'text_a,text_b,score\n"a, b",c,1.5\nd,e,2\n')
    put("e.tsv", "sentence\tlabel\none\t0\ntwo\t1\n")
    (folder / "ids").mkdir()
    save_file({"input_ids": torch.arange(12).view(3, 4)}, folder / "ids" / "f.safetensors")


@target(
    "samples", sample_seeds, "io/samples.py:read_samples read_text _read_rows _read_ids",
    "io/sample_tables.py", "train/tasks/labelled.py:_read _sample",
)  # fmt: skip
def read_sample_file(folder: Path) -> object:
    from gossamer.io.samples import read_samples
    from gossamer.train.tasks.labelled import _read

    path = _only(folder)
    if path.suffix == ".jsonl":
        _tried(lambda: _read(str(path)))
    found = read_samples(path, labelled=True)
    # Texts go to tokenizers and files.
    return "\n".join(found.texts).encode("utf-8")


def image_seeds(folder: Path) -> None:
    pixels = (np.arange(5 * 16, dtype=np.uint8) * 3).reshape(5, 4, 4)
    labels = np.arange(5) % 3
    parts = {"x_train": pixels, "y_train": labels, "x_test": pixels / 255.0, "y_test": labels}
    for name in ("packed", "plain", "small", "idx"):
        (folder / name).mkdir()
    np.savez_compressed(folder / "packed" / "m.npz", **parts)
    np.savez(folder / "plain" / "m.npz", **parts)
    np.savez(folder / "small" / "m.npz", x=pixels[:, None].astype(np.float32), y=labels)
    start = b"\0\0\x08"
    for kind in ("train", "t10k"):
        head = start + b"\3" + b"".join(size.to_bytes(4, "big") for size in pixels.shape)
        (folder / "idx" / f"{kind}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = start + b"\1" + (5).to_bytes(4, "big")
        (folder / "idx" / f"{kind}-labels-idx1-ubyte").write_bytes(
            head + labels.astype(np.uint8).tobytes()
        )


@target(
    "images", image_seeds, "io/array_file.py", "train/tasks/image_files.py",
    "train/tasks/idx_file.py",
)  # fmt: skip
def read_image_data(folder: Path) -> object:
    from gossamer.search.image_workload import read_image_set
    from gossamer.train.tasks.image_files import read_images

    path = folder / "m.npz"
    if not path.exists():
        return read_images(folder)
    _tried(lambda: read_images(path))
    return read_image_set(path)


# Tokenizers and what lies beside a model.

# Parts that tokenizer.json knows, with settings that break careless code.
PARTS: dict[str, list[Any]] = {
    "normalizer": [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"},
        {"type": "Replace", "pattern": {"Regex": "(a|a)*b"}, "content": "x" * 50},
        {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 30},
        {"type": "Prepend", "prepend": "x" * 100},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "StripAccents"}, {"type": "ByteLevel"}, {"type": "NFKD"}, {"type": "Nmt"}, None,
    ],
    "pre_tokenizer": [
        {"type": "Split", "pattern": {"Regex": "(?:)"}, "behavior": "Isolated", "invert": False},
        {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Removed", "invert": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": "", "prepend_scheme": "always", "split": True},
        {"type": "CharDelimiterSplit", "delimiter": "e"},
        {"type": "FixedLength", "length": 0}, {"type": "UnicodeScripts"}, {"type": "Whitespace"},
        {"type": "Sequence", "pretokenizers": []}, None,
    ],
    "post_processor": [
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}],
         "pair": [], "special_tokens": {}},
        {"type": "BertProcessing", "sep": ["[SEP]", 2**31], "cls": ["[CLS]", 0]},
        {"type": "RobertaProcessing", "sep": ["s", 1], "cls": ["c", 2], "trim_offsets": True,
         "add_prefix_space": True},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Sequence", "processors": []}, None,
    ],
    "decoder": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "WordPiece", "prefix": "", "cleanup": True}, {"type": "ByteFallback"},
        {"type": "Strip", "content": " ", "start": 2**31, "stop": 2**31}, {"type": "Fuse"},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        {"type": "BPEDecoder", "suffix": ""},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}, None,
    ],
    "truncation": [
        {"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0},
        {"direction": "Left", "max_length": 2, "strategy": "OnlyFirst", "stride": 5}, None,
    ],
    "padding": [
        {"strategy": {"Fixed": 2**40}, "direction": "Right", "pad_to_multiple_of": None,
         "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}, None,
    ],
    "model": [
        {"type": "BPE", "dropout": 0.5, "unk_token": "x", "continuing_subword_prefix": "",
         "end_of_word_suffix": "", "fuse_unk": True, "byte_fallback": True,
         "vocab": {"a": 0, "b": 2**31}, "merges": [["a", "b"]]},
        {"type": "Unigram", "unk_id": 7, "vocab": [["a", -1.0]], "byte_fallback": True},
        {"type": "Unigram", "unk_id": None, "vocab": [], "byte_fallback": False},
        {"type": "WordPiece", "unk_token": "none", "continuing_subword_prefix": "##",
         "max_input_chars_per_word": 0, "vocab": {"a": 5}},
        {"type": "WordLevel", "vocab": {}, "unk_token": "x"},
    ],
}  # fmt: skip


def change_tokenizer(files: Files, draw: random.Random) -> Files:
    """Parts of other tokenizers put in, so that most cases are read and used; or any change."""
    content = json.loads(files["tokenizer.json"])
    if draw.random() < 0.4:
        return change_files(files, draw)
    for _ in range(draw.choice((1, 1, 2, 3))):
        part = draw.choice(sorted(PARTS))
        chosen = copy.deepcopy(draw.choice(PARTS[part]))
        content[part] = change_value(chosen, draw) if draw.random() < 0.5 else chosen
    return {"tokenizer.json": json.dumps(content).encode("utf-8", "surrogatepass")}


def tokenizer_seeds(folder: Path) -> None:
    from text_models import byte_tokenizer, word_tokenizer
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    unknown = "[UNK]"
    pieces = Tokenizer(
        models.WordPiece({unknown: 0, "the": 1, "dog": 2, "##s": 3, "[CLS]": 4}, unk_token=unknown)
    )
    pieces.normalizer = normalizers.BertNormalizer()
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    pieces.post_processor = processors.BertProcessing(("[UNK]", 0), ("[CLS]", 4))
    pieces.enable_truncation(8)
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("▁the", -2.0)], 0))
    unigram.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("  ", " "), normalizers.Lowercase()]
    )
    unigram.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Digits(), pre_tokenizers.Punctuation()]
    )
    unigram.decoder = decoders.Sequence([decoders.Metaspace(), decoders.Strip(" ", 1, 1)])
    made = {"words": word_tokenizer(), "bytes": byte_tokenizer(), "p": pieces, "u": unigram}
    for name, tokenizer in made.items():
        (folder / name).mkdir()
        tokenizer.save(str(folder / name / "tokenizer.json"))


@target(
    "tokenizer", tokenizer_seeds, "io/guarded_tokenizer.py", "run/text_tokens.py:cut checked",
    change=change_tokenizer,
)  # fmt: skip
def read_tokenizer(folder: Path) -> object:
    from types import SimpleNamespace

    from gossamer.io import read_beside
    from gossamer.run.text_pieces import TextPieces
    from gossamer.run.text_tokens import TextTokens

    config = SimpleNamespace(max_position_embeddings=48, vocab_size=257, model_type="bert")
    tokens = TextTokens(read_beside(folder), config)
    pieces = TextPieces(tokens.tokenizer)
    ids, _ = tokens.cut(TEXTS)
    return [pieces.add(int(number)) for row in ids for number in row]


def beside_seeds(folder: Path) -> None:
    from text_models import TEMPLATE

    (folder / "a").mkdir()
    config = {
        "eos_token": {"content": "</s>"}, "bos_token": "<s>", "model_max_length": 1e30,
        "chat_template": [{"name": "default", "template": TEMPLATE}, {"name": "b", "template": ""}],
        "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
    }  # fmt: skip
    (folder / "a" / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "a" / "generation_config.json").write_text('{"eos_token_id": [1, 2], "top_p": 0.9}')
    (folder / "b").mkdir()
    (folder / "b" / "chat_template.jinja").write_text(TEMPLATE)


@target(
    "chat-template", beside_seeds, "io/strict_json.py:parse_json",
    "run/chat_template.py:_read _template _special_tokens end_tokens",
)  # fmt: skip
def read_chat(folder: Path) -> object:
    from types import SimpleNamespace

    from text_models import byte_tokenizer

    from gossamer.io import read_beside
    from gossamer.run.chat_template import ChatTemplate, end_tokens

    beside = read_beside(folder)
    end_tokens(beside, SimpleNamespace(eos_token_id=3), byte_tokenizer())
    return bool(ChatTemplate(beside))


# What runs write for themselves.


def journal_seeds(folder: Path) -> None:
    from gossamer.prune.journal import DiskJournal
    from gossamer.prune.solvers.problem import LayerSolution
    from gossamer.train.metrics import MetricsFile

    torch.manual_seed(0)
    mask = torch.rand(6, 10) > 0.5
    solution = LayerSolution(torch.randn(6, 10) * mask, mask, ("a note",))
    DiskJournal(folder / "j", {"model": "m"}).note("layer", solution)
    metrics = MetricsFile(folder / "j" / "metrics.jsonl")
    for step in range(3):
        metrics.write({"kind": "step", "step": step, "loss": 1.5})
    metrics.close()


@target(
    "journal", journal_seeds, "prune/journal.py:recall _check_key check_same_run _held _solution",
    "train/metrics.py:read_metrics",
)  # fmt: skip
def read_journal(folder: Path) -> object:
    from gossamer.prune.journal import DiskJournal
    from gossamer.train.metrics import read_metrics

    if (folder / "metrics.jsonl").exists():
        read_metrics(folder / "metrics.jsonl")
    return DiskJournal(folder, {"model": "m"}).recall("layer")


def search_seeds(folder: Path) -> None:
    from gossamer.search.forecast import Forecast, Forecasts
    from gossamer.search.records import write_record
    from gossamer.search.trial import Point, Trial

    (folder / "s").mkdir()
    point = Point("a", "fp32", 80.0, float("inf"), 1.5, 2.0, 1000)
    write_record(folder / "s" / "trial.json", Trial("a", 1.0, (point, point), 10))
    write_record(folder / "s" / "forecasts.json", Forecasts(1.0, (Forecast("2:4", 1.0, 0.5),)))
    write_record(folder / "s" / "search.json", {"model": "m", "data": "d"})


@target("search", search_seeds, "search/records.py:read_record")
def read_search(folder: Path) -> object:
    from gossamer.search.forecast import Forecasts
    from gossamer.search.records import read_record
    from gossamer.search.trial import Trial

    kinds: dict[str, Any] = {"trial": Trial, "forecasts": Forecasts, "search": dict[str, str]}
    return [_tried(lambda n=n, k=k: read_record(folder / f"{n}.json", k)) for n, k in kinds.items()]


def cost_seeds(folder: Path) -> None:
    from gossamer.ops.timing import Duel
    from gossamer.run.cost_table import CostKey, CostTable

    (folder / "c").mkdir()
    table = CostTable(folder / "c" / "kernels.json")
    for tokens in (1, 16):
        table.put(CostKey("panel", 64, 64, "2:4", 0.5, tokens, 1), Duel(2.0, 1.0))
    table.save()


@target("cost-table", cost_seeds, "run/cost_table.py:_read get __init__")
def read_costs(folder: Path) -> object:
    from gossamer.run.cost_table import CostKey, CostTable

    table = CostTable(folder / "kernels.json")
    found = table.get(CostKey("panel", 64, 64, "2:4", 0.5, 16, 1))
    return None if found is None else found.ratio


def _tried(read: Callable[[], object]) -> object:
    """What a reader gave or refused with: it is not the last one of its case."""
    try:
        return read()
    except GossamerError as error:
        return error


def _only(folder: Path) -> Path:
    """The one file of a case."""
    return next(iter(sorted(folder.iterdir())), folder / "missing.txt")
