# SPDX-License-Identifier: Apache-2.0
"""RoBERTa: the layers of BERT; positions start behind the padding token."""

from dataclasses import replace

from gossamer.nn.families.encoders.bert import bert_like
from gossamer.nn.families.family import Family, PositionFacts


def roberta_like(name: str, model_type: str, prefix: str) -> Family:
    """A family that differs from RoBERTa in its vocabulary only."""
    family = bert_like(
        name,
        model_type,
        prefix,
        heads={
            "lm_head.dense": "inner",
            "lm_head.layer_norm": "last norm",
            "lm_head.decoder": "head",
            "lm_head": "logits",
            "classifier.dense": "inner",
            "classifier.out_proj": "classifier",
            "classifier": "classifier",
        },
    )
    return replace(family, positions=PositionFacts(after_padding=True))


FAMILY = roberta_like("RoBERTa", "roberta", "Roberta")
