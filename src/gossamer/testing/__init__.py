# SPDX-License-Identifier: Apache-2.0
"""Conformance suites for plug-ins, and a cluster in a box for tests of distributed training.

`check_format`, `check_op` and `check_sparsifier` raise at the first rule that a plug-in breaks.
`Cluster` gives hosts with `Link`s of their own on one machine. `fake_network` and `simulated_ranks`
play pipelines and ranks in one process.
"""

from gossamer.testing.cluster import Cluster, why_no_namespaces
from gossamer.testing.cluster_network import Link, Traffic
from gossamer.testing.formats import check_format
from gossamer.testing.ops import check_op
from gossamer.testing.sparsifiers import check_sparsifier

__all__ = [
    "Cluster",
    "Link",
    "Traffic",
    "check_format",
    "check_op",
    "check_sparsifier",
    "why_no_namespaces",
]
