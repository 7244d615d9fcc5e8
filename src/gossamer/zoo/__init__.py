# SPDX-License-Identifier: Apache-2.0
"""Small reference models and generated data, for quickstart, tests and benchmarks.

`ZOO` is the closed table of models that an artifact may name. `cluster_problem` makes a problem of
classification that takes seconds to learn.
"""

from typing import Final

from gossamer.zoo.data import Split, accuracy, cluster_problem
from gossamer.zoo.encoder import TinyEncoder
from gossamer.zoo.gpt import GPT, GPTBlock
from gossamer.zoo.mlp import MLP

# The closed table a manifest may name. Constructor arguments are checked by the classes.
ZOO: Final[dict[str, type[MLP] | type[TinyEncoder] | type[GPT]]] = {
    "mlp": MLP,
    "tiny-encoder": TinyEncoder,
    "gpt": GPT,
}

__all__ = ["GPT", "MLP", "ZOO", "GPTBlock", "Split", "TinyEncoder", "accuracy", "cluster_problem"]
