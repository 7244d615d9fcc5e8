# SPDX-License-Identifier: Apache-2.0
"""Graphs of the benchmarks: real ones from GOSSAMER_DATA, and one of ogbn-arxiv's shape."""

from dataclasses import dataclass

import numpy as np

from gossamer.settings import data_dir

# Nodes and edges of ogbn-arxiv, and its features and classes.
ARXIV = 169_343, 1_166_243, 128, 40


@dataclass(frozen=True)
class GraphCase:
    """One graph: edges [2, E], features [N, a], labels [N]."""

    name: str
    edges: np.ndarray
    x: np.ndarray
    y: np.ndarray

    @property
    def num_classes(self):
        """Labels are below it."""
        return int(self.y.max()) + 1


def _both_ways(edges):
    """Edges of an undirected graph, each in both directions."""
    return np.concatenate([edges, edges[::-1]], axis=1)


def _words(arrays, num_nodes):
    """Bags of words as a dense matrix."""
    starts, columns = arrays["x_indptr"], arrays["x_indices"]
    shape = tuple(arrays["x_shape"]) if "x_shape" in arrays else None
    width = int(shape[1]) if shape else int(columns.max()) + 1
    x = np.zeros((num_nodes, width), dtype=np.float32)
    rows = np.repeat(np.arange(num_nodes), np.diff(starts))
    values = arrays["x_data"] if "x_data" in arrays and len(arrays["x_data"]) else 1.0
    x[rows, columns] = values
    return x


def _random(num_nodes, width, seed=0):
    return np.random.default_rng(seed).standard_normal((num_nodes, width), dtype=np.float32)


def _from_csr(starts, columns):
    targets = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    return np.stack([columns.astype(np.int64), targets])


def cora():
    """Cora: 2,708 nodes, 1,433 words."""
    arrays = np.load(data_dir() / "planetoid" / "cora.npz")
    edges = _both_ways(arrays["edges"].reshape(-1, 2).T.astype(np.int64))
    x = _words(arrays, len(arrays["y"]))
    x /= np.maximum(x.sum(1, keepdims=True), 1)
    return GraphCase("Cora", edges, x, arrays["y"].astype(np.int64))


def photo():
    """Amazon-Photo: 7,650 nodes, 745 words."""
    arrays = np.load(data_dir() / "graphs" / "amazon_photo.npz")
    edges = _from_csr(arrays["indptr"], arrays["indices"])
    return GraphCase("Photo", edges, _words(arrays, len(arrays["y"])), arrays["y"].astype(np.int64))


def cs():
    """Coauthor-CS: 18,333 nodes, 6,805 words."""
    arrays = np.load(data_dir() / "graphs" / "coauthor_cs.npz")
    edges = _from_csr(arrays["indptr"], arrays["indices"])
    return GraphCase("CS", edges, _words(arrays, len(arrays["y"])), arrays["y"].astype(np.int64))


def facebook():
    """MUSAE facebook: 22,470 nodes; 128 random features, as its 4,714 words are most of a step."""
    arrays = np.load(data_dir() / "musae" / "facebook.npz")
    edges = _both_ways(arrays["edges"].reshape(-1, 2).T.astype(np.int64))
    y = arrays["y"].astype(np.int64)
    return GraphCase("facebook", edges, _random(len(y), 128), y)


def gowalla():
    """Gowalla: 70,839 users and places; 64 random features."""
    arrays = np.load(data_dir() / "gowalla" / "gowalla.npz")
    users, places = (int(n) for n in arrays["shape"])
    to = _from_csr(arrays["train_indptr"], arrays["train_indices"] + users)
    y = np.zeros(users + places, dtype=np.int64)
    y[users:] = 1
    return GraphCase("Gowalla", _both_ways(to), _random(len(y), 64), y)


def arxiv():
    """A random graph of ogbn-arxiv's shape, whose sources follow a power law."""
    nodes, count, width, classes = ARXIV
    random = np.random.default_rng(0)
    weights = (np.arange(nodes) + 10.0) ** -0.6
    ranks = random.choice(nodes, count, p=weights / weights.sum())
    edges = np.stack([random.permutation(nodes)[ranks], random.integers(0, nodes, count)])
    labels = random.integers(0, classes, nodes)
    return GraphCase("arxiv-like", edges, _random(nodes, width), labels)


CASES = {f.__name__: f for f in (cora, photo, cs, facebook, gowalla, arxiv)}
