# SPDX-License-Identifier: Apache-2.0
"""Models that use a part of themselves, made by looking at data; nothing is trained.

`moefy` splits the feed-forward parts of a dense model into experts: neurons that fire together, and
a router that says which of them a token needs. `fewer_experts` drops experts of a mixture, or
merges them, by how much they give. How models change is in `gossamer.nn.surgery.mixtures`.
"""

from gossamer.pruning.mixtures.fewer import FewerSettings, fewer_experts
from gossamer.pruning.mixtures.moefication import MoefySettings, moefy

__all__ = ["FewerSettings", "MoefySettings", "fewer_experts", "moefy"]
