# SPDX-License-Identifier: Apache-2.0
"""RoBERTa: the layers of BERT; positions start behind the padding token."""

from gossamer.nn.families.bert import bert_like
from gossamer.nn.families.family import PositionFacts
from gossamer.nn.families.reasons import NO_PIPELINE

FAMILY = bert_like(
    "RoBERTa",
    "roberta",
    "Roberta",
    chains=NO_PIPELINE,
    positions=PositionFacts(after_padding=True),
)
