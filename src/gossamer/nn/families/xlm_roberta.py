# SPDX-License-Identifier: Apache-2.0
"""XLM-R: RoBERTa for a hundred languages."""

from gossamer.nn.families.roberta import roberta_like

FAMILY = roberta_like("XLM-R", "xlm-roberta", "XLMRoberta")
