# SPDX-License-Identifier: Apache-2.0
"""CamemBERT: RoBERTa for French."""

from gossamer.nn.families.encoders.roberta import roberta_like

FAMILY = roberta_like("CamemBERT", "camembert", "Camembert")
