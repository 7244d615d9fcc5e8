# SPDX-License-Identifier: Apache-2.0
"""Generated problems whose answers are known: clusters to classify, click logs to rank.

`cluster_problem` is learned in seconds by an MLP. `click_problem` draws long-tailed ids with
planted interactions, and knows the AUC of the best possible model; `write_criteo` writes its rows
as Criteo's files have them.
"""

from gossamer.zoo.problems.clicks import ClickProblem, click_problem, weighted_auc, write_criteo
from gossamer.zoo.problems.clusters import Split, accuracy, cluster_problem

__all__ = [
    "ClickProblem",
    "Split",
    "accuracy",
    "click_problem",
    "cluster_problem",
    "weighted_auc",
    "write_criteo",
]
