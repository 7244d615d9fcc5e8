# SPDX-License-Identifier: Apache-2.0
"""ELECTRA: the layers of BERT behind embeddings that may be narrower than they are."""

from dataclasses import replace

from gossamer.nn.families.encoders.bert import bert_like
from gossamer.nn.families.family import EncoderFacts

_ROWS = bert_like(
    "ELECTRA",
    "electra",
    "Electra",
    heads={
        "embeddings_project": "inner",
        "generator_predictions.dense": "inner",
        "generator_predictions.LayerNorm": "last norm",
        "generator_lm_head": "head",
        "classifier.dense": "inner",
        "classifier.out_proj": "classifier",
        "classifier": "classifier",
    },
    # Embeddings may have a width of their own, which grows by the same factor.
    width=("hidden_size", "embedding_size"),
)
FAMILY = replace(
    _ROWS,
    # Its model projects what the embeddings give, and has no pooler.
    encoder=EncoderFacts(),
)
