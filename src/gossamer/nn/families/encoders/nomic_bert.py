# SPDX-License-Identifier: Apache-2.0
"""NomicBERT: norms last as in BERT, turned queries and keys and gates as in Llama."""

from gossamer.nn.families.encoders.bert import EMBEDDINGS, ENCODER_HEADS
from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    EncoderFacts,
    Family,
    GrowthFacts,
    transformers_chain,
    transformers_path,
)

FAMILY = Family(
    name="NomicBERT",
    block=BlockParts(
        block=transformers_path("nomic_bert", "NomicBertLayer"),
        projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output="self_attn.o_proj",
        attention="self_attn",
        head_dim="self_attn.head_dim",
        expansions=("mlp.gate_proj", "mlp.up_proj"),
        down="mlp.down_proj",
        activation="mlp.act_fn",
        norms=("post_attention_layernorm", "post_mlp_layernorm"),
        norm_first=False,
    ),
    encoder=EncoderFacts(layers="layers", is_model=True, rotary="rotary_emb"),
    chains={
        "NomicBertForMaskedLM": transformers_chain("nomic_bert", "layers", "embeddings", "", "cls")
    },
    classes=ClassNames("nomic_bert", "NomicBert", ENCODER_HEADS[:4], activation="hidden_act"),
    growth=GrowthFacts(
        width=("hidden_size",),
        heads="num_attention_heads",
        head_dim="head_dim",
        ffn="intermediate_size",
        layers="num_hidden_layers",
        vocabulary="vocab_size",
        roles={
            **EMBEDDINGS,
            "pooler.dense": "inner",
            "transform.dense": "inner",
            "transform.layer_norm": "last norm",
            "predictions.decoder": "head",
            "predictions": "logits",
            "classifier": "classifier",
        },
    ),
)
