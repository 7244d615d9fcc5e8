# SPDX-License-Identifier: Apache-2.0
"""RoBERTa: the layers of BERT; positions start behind the padding token."""

from dataclasses import replace

from gossamer.nn.families.bert import bert_like
from gossamer.nn.families.family import PositionFacts

FAMILY = replace(
    bert_like("RoBERTa", "roberta", "Roberta"), positions=PositionFacts(after_padding=True)
)
