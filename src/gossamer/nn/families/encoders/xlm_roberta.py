# SPDX-License-Identifier: Apache-2.0
"""XLM-R: RoBERTa for a hundred languages."""

from gossamer.nn.families.encoders.roberta import roberta_like

FAMILY = roberta_like("XLM-R", "xlm-roberta", "XLMRoberta")
