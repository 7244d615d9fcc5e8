# SPDX-License-Identifier: Apache-2.0
"""Descriptions of clusters: the built-in ones, and every fault with its line."""

import pytest

from gossamer.errors import ClusterError
from gossamer.planner import cluster_text, load_cluster
from gossamer.planner.calibration import measure_loopback
from gossamer.planner.cluster import builtin_clusters, parse_cluster

GOOD = """gossamer-cluster: 1
nodes: 4
ranks_per_node: 2
memory: {gb: 16, overhead_gb: 1}
compute: {tflops: 1, memory_gb_s: 20}
links:
  inside: {gb_s: 5}
  between: {gb_s: 0.125, latency_us: 100}
  node_gb_s: 0.125
"""


@pytest.mark.parametrize("name", builtin_clusters())
def test_built_in_clusters_are_legal_and_survive_a_round_trip(name):
    cluster = load_cluster(name)
    assert cluster.description
    assert parse_cluster(cluster_text(cluster).encode(), "again") == cluster


def test_the_shipped_ones_are_there():
    assert builtin_clusters() == ["dgx-like", "summit", "workstations"]
    assert load_cluster("workstations").ranks == 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gb_s: 0.125,", "gb_s: -0.125,", r"c.yaml:8 links.between.gb_s: must be more than 0"),
        ("gb_s: 5", "gb_s: fast", r"c.yaml:7 links.inside.gb_s: expected a number, got 'fast'"),
        ("gb_s: 5", "gb_s: .inf", r"c.yaml:7 links.inside.gb_s: expected a finite number"),
        ("latency_us: 100", "latency: 100", r"c.yaml:8 .*unknown key 'latency'. Did you mean 'lat"),
        ("nodes: 4", "nodes: 0", r"c.yaml:2 nodes: must be at least 1, got 0"),
        ("nodes: 4", "nodes: 4.5", r"c.yaml:2 nodes: expected a whole number"),
        ("nodes: 4\n", "", r"c.yaml:1 nodes: is missing. How many there are"),
        ("overhead_gb: 1", "overhead_gb: 15.5", r"c.yaml:4 memory.overhead_gb: 15.5 leaves"),
        ("cluster: 1", "cluster: 2", r"c.yaml:1 gossamer-cluster: expected 'gossamer-cluster: 1'"),
        ("cluster: 1", "cluster: true", r"c.yaml:1 gossamer-cluster: expected"),
        ("nodes: 4", "nodes: 1048577", r"c.yaml:2 nodes: must be at most"),
        ("nodes: 4", "nodes: 1048576", r"c.yaml:2 nodes: 2097152 ranks, more than"),
        (GOOD, "- 1\n", r"c.yaml:1: expected a mapping that starts"),
        ("{gb_s: 5}", "&a {gb_s: 5}", r"c.yaml:7: YAML anchors and aliases"),
        ("nodes: 4", "nodes: 4\nnodes: 5", r"c.yaml:3 nodes: the key stands here twice"),
    ],
)
def test_faults_are_told_with_their_line(old, new, words):
    with pytest.raises(ClusterError, match=words):
        parse_cluster(GOOD.replace(old, new, 1).encode(), "c.yaml")


def test_all_faults_are_told_at_once():
    bad = GOOD.replace("gb_s: 5", "gb_s: 0").replace("tflops: 1", "tflops: -1")
    with pytest.raises(ClusterError) as error:
        parse_cluster(bad.encode(), "c.yaml")
    assert [fault.line for fault in error.value.faults] == [5, 7]


def test_an_unknown_name_lists_what_there_is(tmp_path):
    with pytest.raises(ClusterError, match="Did you mean 'summit'"):
        load_cluster("summitt")
    with pytest.raises(ClusterError, match="cannot be read"):
        load_cluster(tmp_path)


def test_loopback_has_a_bandwidth_and_a_latency():
    bandwidth, latency = measure_loopback()
    assert bandwidth > 1e6
    assert 0 < latency < 1
