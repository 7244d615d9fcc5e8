# SPDX-License-Identifier: Apache-2.0
"""Tokens behind a prompt against transformers' own generate; text pieces; chat templates."""

import json

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_models import byte_tokenizer, save_decoder

from gossamer.errors import ArtifactError, InputError
from gossamer.io import load, read_beside
from gossamer.running.decoder import DecoderEngine, GenerationOptions, Sampling, make_generator
from gossamer.running.text import TextPieces
from gossamer.running.text.chat import ChatTemplate, end_tokens

PROMPT = [5, 9, 40, 7]


@pytest.fixture(scope="module")
def model(decoder_folder):
    return load(decoder_folder)


def test_greedy_tokens_are_those_of_transformers(model):
    found = list(make_generator(model).generate(PROMPT, GenerationOptions(20)))
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, 4, dtype=torch.int64),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert found == expected[0, 4:].tolist()
    assert len(set(found)) > 3


@pytest.mark.parametrize("path", ["model.layers.0", "model.layers.1.mlp.up_proj", "lm_head"])
def test_a_hook_of_the_model_goes_layer_by_layer(decoder_folder, path):
    model, seen = load(decoder_folder), []
    model.get_submodule(path).register_forward_hook(lambda *_: seen.append(1))
    with pytest.raises(InputError, match="a forward hook"):
        DecoderEngine(model)
    assert len(list(make_generator(model).generate(PROMPT, GenerationOptions(2)))) == 2
    assert len(seen) >= 2


def test_texts_in_turns_are_those_one_after_the_other(model):
    engine = make_generator(model)
    options = [GenerationOptions(8, Sampling(1.0, seed=s)) for s in range(3)]
    alone = [list(engine.generate(PROMPT[: s + 1], options[s])) for s in range(3)]
    runs = [engine.generate(PROMPT[: s + 1], options[s]) for s in range(3)]
    in_turns = list(zip(*[list(step) for step in zip(*runs, strict=True)], strict=True))
    assert [list(row) for row in in_turns] == alone


def test_a_stop_token_ends_the_text_and_is_not_given(model):
    engine = make_generator(model)
    whole = list(engine.generate(PROMPT, GenerationOptions(20)))
    stop = whole[7]
    found = list(engine.generate(PROMPT, GenerationOptions(20, stop=frozenset([stop]))))
    assert found == whole[: whole.index(stop)]


@pytest.mark.parametrize(("room", "wanted"), [(0, 5), (1, 5), (3, 2)])
def test_the_context_ends_the_text(model, room, wanted):
    engine = make_generator(model)
    prompt = [1] * (engine.context - room)
    assert len(list(engine.generate(prompt, GenerationOptions(wanted)))) == min(room, wanted)


def test_an_encoder_generates_nothing(encoder_folder):
    with pytest.raises(InputError, match="generates no text"):
        make_generator(load(encoder_folder))


@settings(deadline=None, max_examples=80)
@example(text="aba", stop=["b", "aba"])
@given(
    text=st.text(alphabet="abc \u00fc\u20ac\U0001f600", max_size=20),
    stop=st.lists(st.text(alphabet="abc\u00fc", min_size=1, max_size=4), max_size=3),
)
def test_pieces_add_up_to_the_text_before_the_first_stop(text, stop):
    tokenizer = byte_tokenizer()
    pieces = TextPieces(tokenizer, stop)
    found = "".join(pieces.add(token) for token in tokenizer.encode(text).ids) + pieces.rest()
    expected = text
    for length in range(len(text) + 1):
        # Every token is a part of one character, so one more may complete at each length.
        begins = [text[:length].find(word) for word in stop if word in text[:length]]
        if begins:
            expected = text[: min(begins)]
            break
    assert found == expected
    assert pieces.stopped == any(word in text for word in stop)


def test_a_piece_is_held_only_while_a_stop_text_may_begin():
    tokenizer = byte_tokenizer()
    pieces = TextPieces(tokenizer, ["abc"])
    found = [pieces.add(token) for token in tokenizer.encode("xababx").ids]
    assert found == ["x", "", "", "ab", "", "abx"]


def test_chat_template_and_end_tokens(decoder_folder, model):
    beside = read_beside(decoder_folder)
    template = ChatTemplate(beside)
    assert template
    text = template.render([{"role": "user", "content": "Hi"}])
    assert text == "<user>Hi</s><assistant>"
    tokenizer = byte_tokenizer()
    end = tokenizer.token_to_id("</s>")
    assert end_tokens(beside, model.config, tokenizer) == {end}
    more = {"generation_config.json": b'{"eos_token_id": [3, 4]}'}
    assert end_tokens(more, model.config, tokenizer) == {3, 4}
    assert end_tokens({**beside, **more}, model.config, tokenizer) == {3, 4, end}
    odd = {"tokenizer_config.json": b'{"eos_token": {"content": 5}, "bos_token": null}'}
    assert end_tokens({**odd, **more}, model.config, tokenizer) == {3, 4}


def test_templates_of_other_forms():
    named = [{"name": "tool", "template": "x"}, {"name": "default", "template": "{{ bos_token }}!"}]
    config = {"chat_template": named, "bos_token": {"content": "<s>"}}
    beside = {"tokenizer_config.json": json.dumps(config).encode()}
    assert ChatTemplate(beside).render([{"role": "user", "content": "a"}]) == "<s>!"
    beside["chat_template.jinja"] = b"{{ messages[0].content }}"
    assert ChatTemplate(beside).render([{"role": "user", "content": "a"}]) == "a"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no system message') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.pop() }}",
        "{% for %}",
    ],
)
def test_a_template_cannot_reach_python(source):
    beside = {"chat_template.jinja": source.encode()}
    with pytest.raises(InputError, match="refuses them"):
        ChatTemplate(beside).render([{"role": "user", "content": "a"}])


def test_missing_and_damaged_files(tmp_path):
    beside = read_beside(save_decoder(tmp_path / "bare", template=False))
    assert not ChatTemplate(beside)
    with pytest.raises(InputError, match="no chat template"):
        ChatTemplate(beside).render([])
    with pytest.raises(ArtifactError, match="not valid JSON"):
        ChatTemplate({"tokenizer_config.json": b"{"})
    with pytest.raises(ArtifactError, match="must be a JSON object"):
        ChatTemplate({"tokenizer_config.json": b"[]"})
