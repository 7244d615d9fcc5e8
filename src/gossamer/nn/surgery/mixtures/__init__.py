# SPDX-License-Identifier: Apache-2.0
"""Dense models become mixtures of experts, and mixtures get fewer experts; nothing is decided here.

`feed_forwards` finds the feed-forward parts of a dense model, and `become_mixture` puts experts in
their place: the model takes the class of its family that has them. `mixtures_of` finds the layers
of a mixture, and `mix_experts` makes each expert of a smaller one as a sum of old ones. Models stay
the objects that they were, and files of them are those of ordinary models.
"""

from gossamer.nn.surgery.mixtures.dense import FeedForwardPart, feed_forwards
from gossamer.nn.surgery.mixtures.making import ExpertWeights, MixtureSizes, become_mixture
from gossamer.nn.surgery.mixtures.mixing import MixtureLayer, mix_experts, mixtures_of

__all__ = [
    "ExpertWeights",
    "FeedForwardPart",
    "MixtureLayer",
    "MixtureSizes",
    "become_mixture",
    "feed_forwards",
    "mix_experts",
    "mixtures_of",
]
