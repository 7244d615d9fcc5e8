# SPDX-License-Identifier: Apache-2.0
"""ELECTRA: the layers of BERT behind embeddings that may be narrower than they are."""

from dataclasses import replace

from gossamer.nn.families.encoders.bert import bert_like
from gossamer.nn.families.family import EncoderFacts

FAMILY = replace(
    bert_like("ELECTRA", "electra", "Electra", heads={}),
    # Its model projects what the embeddings give, and has no pooler.
    encoder=EncoderFacts(),
    growth="its embeddings have a width of their own, and growing widens one width of a model",
)
