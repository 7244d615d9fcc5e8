# SPDX-License-Identifier: Apache-2.0
"""What an architecture can do, found out by doing it: the cells of a row of the matrix.

A cell is a word or a refusal, an error of gossamer with its sentence. Anything else that goes
wrong is a fault of this package, and an ordinary exception.
"""

import copy
import json
import re
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from model_rows import Architecture
from torch import nn

import gossamer
from gossamer.errors import GossamerError
from gossamer.io.huggingface import example_inputs
from gossamer.nn.families import family_of
from gossamer.nn.families.table import FAMILIES
from gossamer.nn.families.text import is_decoder
from gossamer.nn.layer_kinds import form_of
from gossamer.running.encoder import find_encoders, read_layers

COLUMNS = ("prune", "compact training", "save and load", "compile", "engine")
TOLERANCE = 1e-5
OWN_KERNEL = "panel"


def make(row: Architecture) -> nn.Module:
    """The model of a row with random weights, in eval mode; every norm and bias has some, too."""
    torch.manual_seed(0)
    kind = getattr(transformers, row.model)
    model = kind(kind.config_class(**copy.deepcopy(row.settings))).eval()
    with torch.no_grad():
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def inputs_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Random inputs of an odd size: 3 texts of 7 tokens, images, or sounds."""
    zeros = example_inputs(model, 7, 3)
    assert zeros is not None, f"nobody knows what {type(model).__name__} takes"
    draw = torch.Generator().manual_seed(1)
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", 1)
    return {
        name: torch.randn(zero.shape, generator=draw)
        if zero.is_floating_point()
        else torch.randint(3, vocabulary, zero.shape, generator=draw)
        for name, zero in zeros.items()
    }


def outputs_of(model: nn.Module, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Every tensor of floating point numbers that a call gives."""
    options = {"use_cache": False} if "use_cache" in signature(model.forward).parameters else {}
    given = model(**inputs, **options, return_dict=True)
    found = [value for value in given.values() if torch.is_tensor(value)]
    return [tensor for tensor in found if tensor.is_floating_point()]


def distance(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest number where that is over 1."""
    assert len(found) == len(expected) > 0
    return max(
        float((a - b).abs().max()) / max(1.0, float(b.abs().max()))
        for a, b in zip(found, expected, strict=True)
    )


def cells_of(row: Architecture, folder: Path) -> dict[str, str]:
    """The row of the page: what each column says."""
    stock = make(row)
    inputs = inputs_of(stock)
    with torch.no_grad():
        expected = outputs_of(stock, inputs)
    stock.save_pretrained(folder / "hf", max_shard_size="60KB")
    try:
        model = gossamer.load(folder / "hf")
    except GossamerError as error:
        return dict.fromkeys(COLUMNS, f"no: {_sentence(error)}")
    assert type(model).__name__ == row.model
    with torch.no_grad():
        assert distance(outputs_of(model, inputs), expected) <= TOLERANCE, "loaded is not saved"
    try:
        pruned = _pruned(model)
    except GossamerError as error:
        return dict.fromkeys(COLUMNS, f"no: {_sentence(error)}")
    return {
        "prune": pruned,
        "compact training": _cell(lambda: _compact(model, inputs)),
        "save and load": _cell(lambda: _saved(model, inputs, folder / "packed")),
        "compile": _cell(lambda: _compiled(model, inputs)),
        "engine": _engine(model),
    }


def _cell(do: Callable[[], str]) -> str:
    try:
        return do()
    except GossamerError as error:
        return f"no: {_sentence(error)}"


def _sentence(error: GossamerError) -> str:
    """The message of an error, without the folder of this run."""
    first = str(error).split("\n")[0].strip()
    return re.sub(r"^/\S+: ", "", first)


def _pruned(model: nn.Module) -> str:
    """Half of the weights of every layer of a known kind; the share of all parameters they are."""
    gossamer.sparsify(model, sparsity=0.5)
    layers = _layers(model, "masked")
    assert layers, "nothing was pruned"
    inside = sum(layer.weight.numel() for layer in layers.values())
    total = sum(parameter.numel() for parameter in model.parameters())
    return f"{len(layers)} layers, {round(100 * inside / total)} %"


def _layers(model: nn.Module, form: str) -> dict[str, Any]:
    return {name: part for name, part in model.named_modules() if form_of(part) == form}


def _loss(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.stack([tensor.square().mean() for tensor in outputs_of(model, inputs)]).sum()


def _compact(model: nn.Module, inputs: dict[str, torch.Tensor]) -> str:
    """Gradients of the kept values are those of the masked model at the same places."""
    masked, compact = copy.deepcopy(model), copy.deepcopy(model)
    gossamer.compact(compact)
    for either in (masked, compact):
        _loss(either, inputs).backward()
    layers = _layers(compact, "compact")
    assert layers, "nothing became compact"
    for name, layer in _layers(masked, "masked").items():
        if name not in layers:
            continue
        given, wanted = layers[name].values.grad, layer.weight.grad
        assert (given is None) == (wanted is None), name
        if wanted is None:
            continue
        kept = wanted.reshape(layer.mask().shape)[layer.mask()]
        assert distance([given], [kept]) <= TOLERANCE, name
    left = len(_layers(compact, "masked"))
    return "yes" if not left else f"yes; {left} stay masked"


def _saved(model: nn.Module, inputs: dict[str, torch.Tensor], path: Path) -> str:
    """What is loaded without `model=` gives the same numbers."""
    gossamer.save(model, path)
    again = gossamer.load(path)
    assert type(again) is type(model)
    assert json.loads((path / "config.json").read_text())["architectures"] == [type(model).__name__]
    with torch.no_grad():
        assert distance(outputs_of(again, inputs), outputs_of(model, inputs)) == 0
    assert _layers(again, "masked").keys() == _layers(model, "masked").keys()
    assert len(list(again.parameters())) == len(list(model.parameters()))
    return "yes"


def _compiled(model: nn.Module, inputs: dict[str, torch.Tensor]) -> str:
    """The compiled model equals the masked one, on a sparse kernel wherever it accepts a layer."""
    only = next(iter(inputs.values()))
    example = only if len(inputs) == 1 and only.ndim == 4 else inputs
    fast = gossamer.compile(model, tokens=21, kernel=OWN_KERNEL, example=example)
    packed = len(_layers(fast, "packed"))
    with torch.no_grad():
        assert distance(outputs_of(fast, inputs), outputs_of(model, inputs)) <= TOLERANCE
    return "yes" if packed else "runs dense"


def _engine(model: nn.Module) -> str:
    """The question of `gossamer.nn.families` that its family answers, or what it says instead."""
    if family_of(model, "encoder") is not None:
        encoders = find_encoders(model)
        assert encoders, "its family has layers that nobody finds"
        for _, encoder in encoders:
            read_layers(encoder)  # or an error says what stands in the way
        return "encoder"
    if family_of(model, "decoder") is not None:
        return "decoder"
    name = family_of(model, "block")
    row = next((family for family in FAMILIES if family.name == name), None)
    if row is None:
        return "no: its family has no row in nn/families yet"
    return f"no: {row.decoder if is_decoder(model) else row.encoder}"
