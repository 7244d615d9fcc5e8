# SPDX-License-Identifier: Apache-2.0
"""Small reference models and generated data, for quickstart, tests and benchmarks.

`ZOO` is the closed table of models that an artifact may name; those of graphs are in
`gossamer.zoo.graph_nets`, small ones for images in `gossamer.zoo.small_nets`, the one with experts
in `gossamer.zoo.switch`. `cluster_problem` makes a problem of classification that takes seconds to
learn; `gossamer.zoo.problems` has more of them.
"""

from typing import Final

from torch import nn

from gossamer.zoo.dlrm import DLRM
from gossamer.zoo.encoder import TinyEncoder
from gossamer.zoo.gpt import GPT, GPTBlock
from gossamer.zoo.graph_nets import GraphNet, Recommender
from gossamer.zoo.mlp import MLP
from gossamer.zoo.problems import accuracy, cluster_problem
from gossamer.zoo.small_nets import ShiftNet, SqueezeNet
from gossamer.zoo.switch import SwitchGPT

# The closed table a manifest may name. Constructor arguments are checked by the classes.
ZOO: Final[dict[str, type[nn.Module]]] = {
    "mlp": MLP,
    "tiny-encoder": TinyEncoder,
    "gpt": GPT,
    "switch-gpt": SwitchGPT,
    "dlrm": DLRM,
    "graph-net": GraphNet,
    "recommender": Recommender,
    "squeezenet": SqueezeNet,
    "shift-net": ShiftNet,
}

__all__ = ["DLRM", "GPT", "MLP", "ZOO", "GPTBlock", "TinyEncoder", "accuracy", "cluster_problem"]
