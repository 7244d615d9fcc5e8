# SPDX-License-Identifier: Apache-2.0
"""BERT, and what other families take from it."""

from dataclasses import replace

from gossamer.nn.families.family import (
    BlockParts,
    ClassNames,
    EncoderFacts,
    Family,
    GrowthFacts,
    Role,
    TokenFacts,
    transformers_chain,
    transformers_path,
)

ENCODER_HEADS = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
)


EMBEDDINGS: dict[str, Role] = {
    "word_embeddings": "table",
    "position_embeddings": "embedding",
    "token_type_embeddings": "embedding",
    "embeddings.LayerNorm": "norm",
}


def bert_like(
    name: str,
    model_type: str,
    prefix: str,
    heads: dict[str, Role],
    width: tuple[str, ...] = ("hidden_size",),
) -> Family:
    """A family whose layers are written like those of BERT.

    Args:
        name: what people call it.
        model_type: what config.json calls it.
        prefix: how the names of its classes begin.
        heads: roles of what is on top.
        width: settings that hold the width of the stream, or of embeddings that grow with it.
    """
    return Family(
        name=name,
        block=BlockParts(
            block=transformers_path(model_type, f"{prefix}Layer"),
            projections=("attention.self.query", "attention.self.key", "attention.self.value"),
            output="attention.output.dense",
            attention="attention.self",
            head_dim="attention.self.attention_head_size",
            head_counts=("attention.self.num_attention_heads",),
            head_widths=("attention.self.all_head_size",),
            expansions=("intermediate.dense",),
            down="output.dense",
            activation="intermediate.intermediate_act_fn",
            norms=("attention.output.LayerNorm", "output.LayerNorm"),
            norm_first=False,
        ),
        encoder=EncoderFacts(plain_model=transformers_path(model_type, f"{prefix}Model")),
        tokens=TokenFacts(uncalled=("attention", "self")),
        classes=ClassNames(model_type, prefix, ENCODER_HEADS, activation="hidden_act"),
        growth=GrowthFacts(
            width=width,
            heads="num_attention_heads",
            ffn="intermediate_size",
            layers="num_hidden_layers",
            vocabulary="vocab_size",
            roles={**EMBEDDINGS, "pooler.dense": "inner", "qa_outputs": "classifier", **heads},
        ),
    )


FAMILY = replace(
    bert_like(
        "BERT",
        "bert",
        "Bert",
        heads={
            "transform.dense": "inner",
            "transform.LayerNorm": "last norm",
            "predictions.decoder": "head",
            "predictions": "logits",
            "classifier": "classifier",
        },
    ),
    chains={
        "BertForSequenceClassification": transformers_chain(
            "bert", "encoder.layer", "embeddings", "pooler", "dropout classifier"
        ),
        "BertForMaskedLM": transformers_chain("bert", "encoder.layer", "embeddings", "", "cls"),
    },
)
