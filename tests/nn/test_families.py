# SPDX-License-Identifier: Apache-2.0
"""Every family answers every question or says why not, and its answers are true of real models."""

import dataclasses
import re
import subprocess
import sys
from operator import attrgetter

import pytest
import torch
from torch import nn

from gossamer.errors import TargetError
from gossamer.nn.families import answers, block_of, family_of, why_not
from gossamer.nn.families.table import FAMILIES
from gossamer.nn.families.text import is_decoder, starts_after_padding
from gossamer.nn.relufication import relufy
from gossamer.pruning.structured import find_units
from gossamer.zoo import GPT, MLP, TinyEncoder

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 32, "max_position_embeddings": 16, "hidden_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 16, "n_embd": 8, "n_layer": 2, "n_head": 2,
    "n_positions": 16, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "ffn_dim": 16,
    "word_embed_proj_dim": 8, "num_key_value_heads": 1, "pad_token_id": 1,
}  # fmt: skip
OWN = {
    "TinyEncoder": lambda: TinyEncoder(32, 2, width=8, num_heads=2, ffn_width=16, max_tokens=16),
    "GPT": lambda: GPT(32, width=8, num_heads=2, num_layers=2, context=16),
    "MLP": lambda: MLP((4, 8, 2)),
    "Sequential": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
}
QUESTIONS = [field.name for field in dataclasses.fields(FAMILIES[0])][1:]


def tiny(name: str) -> nn.Module:
    """A small model of the class `name`."""
    if name in OWN:
        return OWN[name]()
    kind = getattr(transformers, name)
    declared = kind.config_class().to_dict()
    torch.manual_seed(0)
    return kind(kind.config_class(**{k: v for k, v in SIZES.items() if k in declared})).eval()


def model_of(family: str) -> nn.Module:
    """A small model of a family."""
    if family in answers("classes"):
        return tiny(answers("classes")[family].names[0])
    return tiny(family.removeprefix("zoo."))


def names_with(question: str) -> list[str]:
    return list(answers(question))


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_answers_every_question_or_says_why_not(family, question):
    answer = getattr(family, question)
    if isinstance(answer, str):
        assert len(answer) > 20, "a reason is a sentence"
        assert family.name not in answers(question)
    else:
        assert answers(question)[family.name] is answer


def test_questions_of_the_table_are_the_fields_of_a_family():
    for question in QUESTIONS:
        assert names_with(question), f"no family answers {question}"
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("family", names_with("block"))
def test_the_parts_of_a_block_are_where_the_table_says(family):
    parts = answers("block")[family]
    blocks = [m for m in model_of(family).modules() if block_of(m) is not None]
    assert len(blocks) == (1 if family == "ALBERT" else 2)  # whose layers share one
    for block in blocks:
        assert block_of(block) is parts
        names = (*parts.linears, *parts.norms, parts.attention, parts.activation)
        for name in names:
            block.get_submodule(name)
        for dotted in (parts.head_dim, *parts.head_counts, *parts.head_widths):
            path, _, attribute = dotted.rpartition(".")
            assert isinstance(getattr(block.get_submodule(path), attribute), int)
        if isinstance(parts.norm_first, str):
            assert isinstance(getattr(block, parts.norm_first), bool)
        assert "norm" in type(block.get_submodule(parts.norms[1])).__name__.lower()


@pytest.mark.parametrize("family", names_with("block"))
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_block_is_given_to_those_who_ask_what_its_family_can_answer(family, question):
    block = next(m for m in model_of(family).modules() if block_of(m) is not None)
    assert (block_of(block, question) is not None) == (family in answers(question))


@pytest.mark.parametrize("family", names_with("block"))
def test_every_family_with_blocks_can_be_relufied(family):
    model = model_of(family)
    relufy(model)
    parts = answers("block")[family]
    blocks = [m for m in model.modules() if block_of(m) is not None]
    assert all(type(block.get_submodule(parts.activation)) is nn.ReLU for block in blocks)


@pytest.mark.parametrize("name", [name for chains in answers("chains").values() for name in chains])
def test_chains_hold_every_parameter_of_their_model(name):
    chain = next(chains[name] for chains in answers("chains").values() if name in chains)
    model = tiny(name)
    prefix = f"{chain.layers}." if chain.layers else ""
    layers = model.get_submodule(chain.layers).named_children()
    paths = (*chain.front, *(prefix + layer for layer, _ in layers), *chain.back)
    for path in paths:
        model.get_submodule(path)
    owned = tuple(f"{path}." for path in paths)
    assert all(parameter.startswith(owned) for parameter, _ in model.named_parameters())


@pytest.mark.parametrize("family", names_with("classes"))
def test_classes_are_those_of_transformers(family):
    classes = answers("classes")[family]
    config = getattr(transformers, classes.config or f"{classes.prefix}Config")()
    assert config.model_type == classes.model_type
    assert hasattr(config, classes.activation)
    for head in classes.heads:
        kind = getattr(transformers, classes.prefix + head)
        assert kind.config_class is type(config)
        assert is_decoder(object.__new__(kind)) == (head in ("ForCausalLM", "LMHeadModel"))


@pytest.mark.parametrize("family", names_with("positions"))
def test_positions_start_where_the_table_says(family):
    if family not in answers("classes"):
        return
    config = model_of(family).config
    after = ("RoBERTa", "XLM-R", "CamemBERT", "MPNet")
    assert starts_after_padding(config) == (family in after)


@pytest.mark.parametrize("family", names_with("decoder"))
def test_decoders_name_parts_that_their_model_has(family):
    facts = answers("decoder")[family]
    assert answers("chains").get(family, {}).get(facts.model, facts.chain) == facts.chain
    assert answers("block").get(family, facts.block) is facts.block
    assert (family in answers("block")) == (facts.experts is None)
    model = tiny(facts.model)
    for name in (facts.chain.front[0], *facts.chain.back, facts.rotary, facts.positions):
        model.get_submodule(name)
    in_model = (facts.embedding_scale, facts.logits_divisor, facts.logits_cap)
    in_block = (facts.scale, facts.window, facts.score_cap, facts.parallel, facts.rotates)
    in_block += (facts.residual_scale, facts.rotary_by_type)
    for owner, paths in ((model, in_model), (model.get_submodule(facts.chain.layers)[0], in_block)):
        for path in filter(None, paths):
            if path != facts.window or not facts.window_in_some:
                attrgetter(path)(owner)
    for name in (*(facts.norms_in or ()), *facts.norms_out, *facts.head_norms):
        model.get_submodule(facts.chain.layers)[0].get_submodule(name)
    assert bool(facts.rotary) != bool(facts.positions), "tokens have places"


@pytest.mark.parametrize("family", [f for f, d in answers("decoder").items() if d.experts])
def test_mixtures_name_parts_that_their_model_has(family):
    facts = answers("decoder")[family]
    model = tiny(facts.model)
    assert family_of(model, "decoder") == family
    block, experts = model.get_submodule(facts.chain.layers)[0], facts.experts
    for name in filter(None, (experts.router, experts.experts, experts.shared_gate)):
        block.get_submodule(name)
    if experts.shared:
        for name in experts.shared_parts:
            block.get_submodule(f"{experts.shared}.{name}")
    if experts.normalised:
        assert isinstance(attrgetter(experts.normalised)(block), bool)
    assert type(block).__name__ in facts.block.block
    for question in ("block", "chains", "growth"):
        assert "expert" in why_not(model, question) or "router" in why_not(model, question)


@pytest.mark.parametrize("family", names_with("block"))
def test_blocks_that_stay_whole_say_why_where_they_would_be_cut(family):
    model, whole = model_of(family), answers("block")[family].whole
    if not whole:
        assert len(find_units(model)) == 4
        return
    assert len(whole) > 20, "a reason is a sentence"
    with pytest.raises(TargetError, match=re.escape(whole)):
        find_units(model)


@pytest.mark.parametrize("family", names_with("gguf"))
def test_gguf_files_have_a_name_for_every_weight(family):
    names, parts = answers("gguf")[family], answers("block")[family]
    facts = answers("decoder")[family]
    assert names.model == facts.model
    chain = facts.chain
    pairs = [
        (names.norms, parts.norms),
        (names.linears, parts.linears),
        (names.front, chain.front),
        (names.back, chain.back),
    ]
    assert all(len(in_file) == len(in_torch) for in_file, in_torch in pairs)


@pytest.mark.parametrize("family", names_with("encoder"))
def test_encoders_name_a_class_whose_plain_call_is_known(family):
    model = answers("encoder")[family].plain_model
    if model:
        kind = type(model_of(family))
        assert model == f"{kind.__module__}.{kind.__qualname__}"


@pytest.mark.parametrize("family", names_with("classes"))
@pytest.mark.parametrize("question", ["growth", "chains"])
def test_what_a_family_cannot_do_is_said_by_its_row(family, question):
    said = next(row for row in FAMILIES if row.name == family)
    answer = getattr(said, question)
    reason = why_not(model_of(family), question)
    assert answer in reason if isinstance(answer, str) else reason == ""


def test_families_are_found_without_transformers():
    code = (
        "import sys\n"
        "from gossamer.nn.families import answers, block_of\n"
        "from gossamer.zoo import GPT\n"
        "blocks = [m for m in GPT(32, width=8, num_heads=2, num_layers=2, context=16).modules()"
        " if block_of(m)]\n"
        "print(len(blocks), 'Llama' in answers('gguf'), 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["2", "True", "False"], done.stderr
