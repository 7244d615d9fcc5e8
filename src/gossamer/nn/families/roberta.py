# SPDX-License-Identifier: Apache-2.0
"""RoBERTa: the layers of BERT; positions start behind the padding token."""

from dataclasses import replace

from gossamer.nn.families.bert import bert_like
from gossamer.nn.families.family import PositionFacts

FAMILY = replace(
    bert_like(
        "RoBERTa",
        "roberta",
        "Roberta",
        heads={
            "lm_head.dense": "inner",
            "lm_head.layer_norm": "last norm",
            "lm_head.decoder": "head",
            "lm_head": "logits",
            "classifier.dense": "inner",
            "classifier.out_proj": "classifier",
            "classifier": "classifier",
        },
    ),
    positions=PositionFacts(after_padding=True),
)
