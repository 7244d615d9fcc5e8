# SPDX-License-Identifier: Apache-2.0
"""Directories of sentence-transformers, against sentence-transformers itself."""

import json
import shutil

import numpy as np
import pytest
import torch
from text_models import sentences

import gossamer
from gossamer.cli.main import main
from gossamer.errors import ArtifactError, InputError
from gossamer.io import load, read_beside
from gossamer.io.artifact.sentence_directory import save_sentence_transformers
from gossamer.io.huggingface.sentences import POOLINGS, sentences_of
from gossamer.running.text import Embedder
from gossamer.running.text.sentence_module import SentenceModule, sentence_transformer

TEXTS = [*sentences(20, seed=5), "the", "the dog nobody knows"]
FLAGS = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens", "lasttoken": "lasttoken"}
PROMPTS = {"query": "the dog ", "passage": ""}


def directory(folder, target, pooling="mean", normalise=True, told=None, length=24):
    """The directory as sentence-transformers 5 writes it, around a tiny encoder."""
    shutil.copytree(folder, target)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    (target / "modules.json").write_text(json.dumps(modules))
    for path in paths[1 : len(kinds)]:
        (target / path).mkdir()
    width = json.loads((target / "config.json").read_text())["hidden_size"]
    pooled = {"word_embedding_dimension": width, **(pooling if isinstance(pooling, dict) else {})}
    if isinstance(pooling, str):
        pooled["pooling_mode"] = pooling
    (target / "1_Pooling" / "config.json").write_text(json.dumps(pooled))
    read = {"max_seq_length": length, "do_lower_case": False}
    (target / "sentence_bert_config.json").write_text(json.dumps(read))
    told = {"__version__": {}, "prompts": {}, "default_prompt_name": None} | (told or {})
    (target / "config_sentence_transformers.json").write_text(json.dumps(told))
    # transformers wants to be told which tokenizer the file is for.
    config = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    if not (target / "tokenizer_config.json").exists():
        (target / "tokenizer_config.json").write_text(config)
    return target


@pytest.fixture(scope="module")
def theirs():
    return pytest.importorskip("sentence_transformers").SentenceTransformer


def embedder(path, **asked):
    return Embedder(load(path), read_beside(path), **asked)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("normalise", [True, False])
def test_vectors_are_those_of_sentence_transformers(
    encoder_folder, tmp_path, theirs, pooling, normalise
):
    path = directory(encoder_folder, tmp_path / "m", pooling, normalise)
    expected = theirs(str(path), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(embedder(path)(TEXTS), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", FLAGS)
def test_the_flags_of_older_versions_are_read(encoder_folder, tmp_path, mode):
    flags = {f"pooling_mode_{name}": mode == key for key, name in FLAGS.items()}
    path = directory(encoder_folder, tmp_path / "m", flags)
    assert sentences_of(read_beside(path)).pooling == mode


def test_long_texts_are_cut_where_the_files_say(encoder_folder, tmp_path, theirs):
    path = directory(encoder_folder, tmp_path / "m", length=6)
    text = ["the dog " * 10]
    expected = theirs(str(path), device="cpu").encode(text)
    np.testing.assert_allclose(embedder(path)(text), expected, rtol=1e-4, atol=1e-5)


def test_prompts(encoder_folder, tmp_path, theirs):
    told = {"prompts": PROMPTS, "default_prompt_name": "query"}
    path = directory(encoder_folder, tmp_path / "m", told=told)
    model = theirs(str(path), device="cpu")
    for prompt in ("query", "passage"):
        expected = model.encode(TEXTS, prompt_name=prompt)
        found = embedder(path, prompt=prompt)(TEXTS)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(embedder(path)(TEXTS), model.encode(TEXTS), rtol=1e-4, atol=1e-5)
    plain = embedder(path, prompt="")(TEXTS)
    np.testing.assert_allclose(plain, model.encode(TEXTS, prompt=""), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="prompt 'other': this model has query, passage"):
        embedder(path, prompt="other")


def test_a_pruned_model_goes_back_to_where_it_came_from(encoder_folder, tmp_path, theirs):
    told = {"prompts": PROMPTS, "default_prompt_name": "query"}
    path = directory(encoder_folder, tmp_path / "m", "cls", told=told)
    model = load(path)
    gossamer.sparsify(model, sparsity=0.5)
    gossamer.save(model, tmp_path / "packed", beside=read_beside(path))
    expected = embedder(tmp_path / "packed")(TEXTS)
    assert read_beside(tmp_path / "packed") == read_beside(path)

    options = ["--format", "sentence-transformers", "-q"]
    assert main(["convert", str(tmp_path / "packed"), str(tmp_path / "back"), *options]) == 0
    assert read_beside(tmp_path / "back") == read_beside(path)
    back = theirs(str(tmp_path / "back"), device="cpu")
    np.testing.assert_allclose(back.encode(TEXTS), expected, rtol=1e-4, atol=1e-5)
    weight = next(p for name, p in back.named_parameters() if name.endswith("query.weight"))
    assert (weight == 0).float().mean() == pytest.approx(0.5, abs=0.01)

    loaded = sentence_transformer(str(tmp_path / "packed"))
    np.testing.assert_allclose(loaded.encode(TEXTS), expected, rtol=1e-3, atol=1e-4)
    found = loaded.encode(TEXTS, prompt_name="passage", batch_size=3, normalize_embeddings=True)
    plain = embedder(tmp_path / "packed", prompt="passage")(TEXTS)
    np.testing.assert_allclose(found, plain, rtol=1e-3, atol=1e-4)
    assert loaded.similarity(found, found).diagonal() == pytest.approx(1, abs=1e-4)
    assert loaded.get_embedding_dimension() == found.shape[1]


def test_a_module_takes_texts_alone(encoder_folder):
    module = SentenceModule(load(encoder_folder), read_beside(encoder_folder))
    with pytest.raises(InputError, match="takes texts alone"):
        module.preprocess([("a", "b")])
    y = module(module.tokenize(["the dog"]))["sentence_embedding"]
    torch.testing.assert_close(y, embedder(encoder_folder)(["the dog"]))


def test_the_command_and_its_options(encoder_folder, tmp_path):
    path = directory(encoder_folder, tmp_path / "m", "max", normalise=False)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    target = tmp_path / "v.npy"
    command = ["run", "encode", str(path), str(tmp_path / "texts.txt"), "-o", str(target), "-q"]
    assert main(command) == 0
    np.testing.assert_allclose(np.load(target), embedder(path)(TEXTS), rtol=1e-3, atol=1e-4)


def spoilt(path, name, change):
    content = json.loads((path / name).read_text())
    changed = change(content)
    (path / name).write_text(json.dumps(content if changed is None else changed))


POOLED, TOLD, READ = "1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert"
FAULTS = {
    "dense": ("modules.json", lambda m: m[2].update(type="x.Dense"), "lists .*Dense; expected"),
    "code": ("modules.json", lambda m: m[0].update(type="custom.Mine"), "lists Mine, Pooling"),
    "order": ("modules.json", lambda m: m[::-1], "lists Normalize, Pooling, Transformer"),
    "none": ("modules.json", lambda m: [], "lists no module"),
    "out": ("modules.json", lambda m: m[1].update(path="../up"), "no name of a folder"),
    "folder": ("modules.json", lambda m: m[1].update(path="other"), "other/config.json"),
    "table": ("modules.json", lambda m: {}, "must be a list"),
    "two": (POOLED, lambda p: p.update(pooling_mode=["mean", "max"]), "Several at once"),
    "new": (POOLED, lambda p: p.update(pooling_mode="attention"), "pooling .'attention'"),
    "flag": (
        POOLED,
        lambda p: p.pop("pooling_mode") and p.update(pooling_mode_new_tokens=True),
        "pooling .*new_tokens",
    ),
    "length": (READ + "_config.json", lambda r: r.update(max_seq_length=0), "whole number from 1"),
    "prompts": (TOLD, lambda t: t.update(prompts={"a": 1}), "prompts must be texts"),
    "default": (TOLD, lambda t: t.update(default_prompt_name="b"), "'b' is none of its prompts"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_ask_for_something_else_are_refused(encoder_folder, tmp_path, fault):
    path = directory(encoder_folder, tmp_path / "m")
    name, change, message = FAULTS[fault]
    spoilt(path, name, change)
    with pytest.raises(ArtifactError, match=message):
        embedder(path)


def test_a_prompt_that_is_not_pooled_is_refused(encoder_folder, tmp_path):
    path = directory(encoder_folder, tmp_path / "m", told={"prompts": PROMPTS})
    spoilt(path, POOLED, lambda p: p.update(include_prompt=False))
    assert len(embedder(path)(TEXTS)) == len(TEXTS)
    with pytest.raises(InputError, match="leaves the tokens of prompts out"):
        embedder(path, prompt="query")


def test_other_models_have_no_such_directory(encoder_folder, tmp_path):
    with pytest.raises(InputError, match=r"needs a model of transformers and the modules\.json"):
        save_sentence_transformers(
            load(encoder_folder), tmp_path / "m", beside=read_beside(encoder_folder)
        )
    assert not (tmp_path / "m").exists()
