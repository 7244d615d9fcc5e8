# SPDX-License-Identifier: Apache-2.0
"""Where transformer families keep their attention heads and feed-forward filters, as data.

Names are dotted and relative to one block. A family is one row; no other code knows families.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class BlockFamily:
    """One kind of transformer block.

    Attributes:
        name: what people call it.
        block: module and class of a block; looked up, never imported.
        projections: layers whose rows belong to heads; `key` of them has one head per unit.
        output: the layer whose columns belong to heads.
        attention: module that computes the heads and has nothing to do once none is left; empty
            where the block itself computes them.
        head_dim: attribute with the rows of one head.
        head_counts: attributes that hold the number of query heads.
        head_widths: attributes that hold query heads times head_dim.
        segments: how many projections are stacked in each of `projections`.
        expansions: layers whose rows are filters: up, or gate and up.
        down: the layer whose columns are filters.
        norm_first: True if the feed-forward part adds to the sum of block input and attention,
            False if it adds to its own input; a name is an attribute of the block that says so.
    """

    name: str
    block: str
    projections: tuple[str, ...]
    key: str
    output: str
    attention: str
    head_dim: str
    expansions: tuple[str, ...]
    down: str
    norm_first: bool | str
    head_counts: tuple[str, ...] = ()
    head_widths: tuple[str, ...] = ()
    segments: int = 1


def _transformers(family: str, block: str) -> str:
    return f"transformers.models.{family}.modeling_{family}.{block}"


def _bert_like(family: str, block: str, name: str) -> BlockFamily:
    own = "attention.self"
    return BlockFamily(
        name=name,
        block=_transformers(family, block),
        projections=(f"{own}.query", f"{own}.key", f"{own}.value"),
        key=f"{own}.key",
        output="attention.output.dense",
        attention=own,
        head_dim=f"{own}.attention_head_size",
        head_counts=(f"{own}.num_attention_heads",),
        head_widths=(f"{own}.all_head_size",),
        expansions=("intermediate.dense",),
        down="output.dense",
        norm_first=False,
    )


def _llama_like(family: str, block: str, name: str) -> BlockFamily:
    own = "self_attn"
    return BlockFamily(
        name=name,
        block=_transformers(family, block),
        projections=(f"{own}.q_proj", f"{own}.k_proj", f"{own}.v_proj"),
        key=f"{own}.k_proj",
        output=f"{own}.o_proj",
        attention=own,
        head_dim=f"{own}.head_dim",
        expansions=("mlp.gate_proj", "mlp.up_proj"),
        down="mlp.down_proj",
        norm_first=True,
    )


FAMILIES: tuple[BlockFamily, ...] = (
    _bert_like("bert", "BertLayer", "BERT"),
    _bert_like("roberta", "RobertaLayer", "RoBERTa"),
    BlockFamily(
        name="DistilBERT",
        block=_transformers("distilbert", "TransformerBlock"),
        projections=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        key="attention.k_lin",
        output="attention.out_lin",
        attention="attention",
        head_dim="attention.attention_head_size",
        head_counts=("attention.n_heads",),
        expansions=("ffn.lin1",),
        down="ffn.lin2",
        norm_first=False,
    ),
    BlockFamily(
        name="GPT-2",
        block=_transformers("gpt2", "GPT2Block"),
        projections=("attn.c_attn",),
        key="attn.c_attn",
        output="attn.c_proj",
        attention="attn",
        head_dim="attn.head_dim",
        head_counts=("attn.num_heads",),
        head_widths=("attn.split_size",),
        segments=3,
        expansions=("mlp.c_fc",),
        down="mlp.c_proj",
        norm_first=True,
    ),
    BlockFamily(
        name="OPT",
        block=_transformers("opt", "OPTDecoderLayer"),
        projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        key="self_attn.k_proj",
        output="self_attn.out_proj",
        attention="self_attn",
        head_dim="self_attn.head_dim",
        head_counts=("self_attn.num_heads",),
        expansions=("fc1",),
        down="fc2",
        norm_first="do_layer_norm_before",
    ),
    _llama_like("llama", "LlamaDecoderLayer", "Llama"),
    _llama_like("qwen2", "Qwen2DecoderLayer", "Qwen2"),
    _llama_like("mistral", "MistralDecoderLayer", "Mistral"),
    BlockFamily(
        name="zoo.TinyEncoder",
        block="gossamer.zoo.encoder.EncoderLayer",
        projections=("query", "key", "value"),
        key="key",
        output="output",
        attention="",
        head_dim="head_dim",
        head_counts=("num_heads",),
        expansions=("up",),
        down="down",
        norm_first=True,
    ),
    BlockFamily(
        name="zoo.GPT",
        block="gossamer.zoo.gpt.GPTBlock",
        projections=("qkv",),
        key="qkv",
        output="output",
        attention="",
        head_dim="head_dim",
        segments=3,
        expansions=("up",),
        down="down",
        norm_first=True,
    ),
)  # fmt: skip
_BY_BLOCK = {family.block: family for family in FAMILIES}


def family_of(module: nn.Module) -> BlockFamily | None:
    """The family a module is a block of, None for every other module."""
    kind = type(module)
    return _BY_BLOCK.get(f"{kind.__module__}.{kind.__qualname__}")
