# SPDX-License-Identifier: Apache-2.0
"""How a decoder reads long texts is measured and chosen."""

import math

import pytest
import torch
from search_tools import make_quick, random_lines, tiny_encoder, tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from gossamer.errors import InputError
from gossamer.patterns.attention.key_rules import parse_key_rules
from gossamer.running.decoder import DecoderEngine
from gossamer.search import shrink
from gossamer.search.candidates import Mask
from gossamer.search.long_texts import ask_depths, choose_keys, key_rules_for, read_on

LENGTH = 256
IDS = torch.randint(2, 12, (2, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()


def tiny_llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=300,
        initializer_range=0.3,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def test_perplexity_is_that_of_the_last_tokens():
    model = tiny_llama()
    engine = DecoderEngine(model, "fp32", context=LENGTH)
    ids = torch.tensor(IDS)
    with torch.no_grad():
        logits = model(ids).logits.double().log_softmax(-1)[:, -33:-1]
    wanted = math.exp(-logits.gather(2, ids[:, -32:, None]).mean().item())
    found = read_on(engine, IDS, 32)
    assert found.perplexity == pytest.approx(wanted, rel=1e-4)
    assert found.prompt > 0
    assert found.token > 0


def test_the_same_numbers_are_found_as_without_a_shared_session():
    engine = DecoderEngine(tiny_llama(), "fp32", context=LENGTH)
    asked = []

    class Digits:
        """Ten words are digits, and a text is what its tokens say."""

        def encode(self, text, add_special_tokens):
            asked.append(text)
            digits = [int(sign) + 2 for sign in text if sign.isdigit()]
            return type("Encoding", (), {"ids": digits or [2, 3]})

        def decode(self, ids):
            return "".join(str(i - 2) for i in ids)

    assert ask_depths(engine, IDS[0], Digits()) == 0  # nobody taught it
    assert len(asked) == 11
    assert len(set(asked[1:])) == 10


def test_the_choice_loses_little_and_is_among_what_was_measured():
    engine = DecoderEngine(tiny_llama(), "int8", context=LENGTH)
    found = choose_keys(engine, IDS, IDS[:1], tiny_tokenizer(), 0.05)
    assert [point.name for point in found.points] == [
        f"--attention {rules} --kv {rules.dtype}" for rules in key_rules_for(LENGTH)
    ]
    full = found.points[0]
    assert (full.attention, full.keys, full.lost) == ("full", "fp32", 0.0)
    assert full.found is not None
    for point in found.points:
        rules = parse_key_rules(point.attention, point.keys)
        assert point.size == engine.with_keys(rules).key_bytes
        assert (point.found is None) == (point.lost > 0.05)
    assert found.chosen in found.points
    assert found.chosen.lost <= 0.05
    assert found.chosen.ms == min(p.ms for p in found.points if p.found is not None)
    assert f"{found.quality:.2f}" in found.text or found.chosen == full


def test_without_time_only_all_keys_are_measured():
    engine = DecoderEngine(tiny_llama(), "int8", context=LENGTH)
    found = choose_keys(
        engine, IDS[:1], IDS[1:], tiny_tokenizer(), 1.0, seconds_left=lambda: 0.0
    )  # fmt: skip
    assert found.chosen == found.points[0]
    assert len(found.points) == 1
    assert len(found.left_out) == len(key_rules_for(LENGTH)) - 1
    assert found.quality == found.full_quality


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_shrink_says_how_to_read(tmp_path, monkeypatch):
    make_quick(monkeypatch, steps=())
    text = tmp_path / "text.txt"
    text.write_text("\n".join(random_lines(600)))
    given = {"tokenizer": tiny_tokenizer(), "masks": (Mask("unstructured", 0.5),)}
    result = shrink(
        tiny_llama(), text, tmp_path / "out", length=128, max_loss=0.5, budget_minutes=30, **given
    )
    assert result.long_texts.length == 128
    assert result.long_texts.text in (tmp_path / "out" / "card.md").read_text()
    for model, length, said in (
        (tiny_encoder(), 128, "read by decoders"),
        (tiny_llama(), 4096, "300 positions"),
        (tiny_llama(), 3, "are not long"),
    ):
        with pytest.raises(InputError, match=said):
            shrink(model, text, tmp_path / "no", length=length, **given)
