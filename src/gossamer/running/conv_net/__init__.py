# SPDX-License-Identifier: Apache-2.0
"""Convolutional networks: what follows a convolution is folded into it, or all is one native call.

Start at `fold_batch_norms` (a BatchNorm becomes part of the weight), `fuse_convs` (a kernel also
computes the ReLU and the residual sum) and `use_conv_net` (the body of a network in one call).
`same_output` (`fused_convs.py`) guards each of them: a rewritten model that gives something else is
not used.
"""

from gossamer.running.conv_net.batch_norm import fold_batch_norms
from gossamer.running.conv_net.fused_convs import fuse_convs, may_rewrite_forward
from gossamer.running.conv_net.network import NetForward, use_conv_net

__all__ = ["NetForward", "fold_batch_norms", "fuse_convs", "may_rewrite_forward", "use_conv_net"]
