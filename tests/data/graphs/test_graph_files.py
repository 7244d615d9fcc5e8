# SPDX-License-Identifier: Apache-2.0
"""Graphs from files: arrays and tables give the same, and what cannot be is said in a sentence."""

import numpy as np
import pytest
import torch

from gossamer.data.graphs import GraphRules, read_links, read_nodes
from gossamer.errors import InputError

EDGES = np.array([[0, 1], [1, 2], [2, 0], [3, 3]])
X = np.arange(8, dtype=np.float32).reshape(4, 2)
Y = np.array([0, 1, -1, 1])
PARTS = {"train": np.array([0]), "val": np.array([1]), "test": np.array([3])}


def write(path, **changes):
    arrays = {"edges": EDGES, "x": X, "y": Y, **PARTS, **changes}
    np.savez(path, **{name: a for name, a in arrays.items() if a is not None})
    return path


def write_tables(folder, sign=",", ending=".csv", nodes=None, edges=None):
    folder.mkdir()
    lines = nodes or ["node,label,split,a,b", "n0,0,train,0,1", "n1,1,val,2,3", "n2,,,4,5"]
    lines = lines if nodes else [*lines, "n3,1,test,6,7"]
    (folder / f"nodes{ending}").write_text("\n".join(lines).replace(",", sign) + "\n")
    lines = edges or ["source,target", "n0,n1", "n1,n2", "n2,n0", "n3,n3"]
    (folder / f"edges{ending}").write_text("\n".join(lines).replace(",", sign) + "\n")
    return folder


def matrix(data):
    found = torch.zeros(len(data.x), len(data.x))
    weight = torch.ones(data.edges.shape[1]) if data.weight is None else data.weight
    found.index_put_((data.edges[1], data.edges[0]), weight, accumulate=True)
    return found


def test_all_forms_of_a_file_are_the_same_graph(tmp_path):
    starts = np.array([0, 1, 2, 3, 4])
    # Rows are targets: 0 from 2, 1 from 0, 2 from 1, 3 from itself.
    rows = {"edges": None, "indptr": starts, "indices": np.array([2, 0, 1, 3])}
    words = {
        "x": None,
        "x_indptr": np.array([0, 1, 3, 5, 7]),
        "x_indices": np.array([1, 0, 1, 0, 1, 0, 1]),
        "x_data": np.arange(1.0, 8.0),
        "x_shape": np.array([4, 2]),
    }
    masks = dict.fromkeys(PARTS)
    for name, members in PARTS.items():
        masks[f"{name}_mask"] = np.isin(np.arange(4), members)
    forms = [
        write(tmp_path / "a.npz"),
        write(tmp_path / "b.npz", edges=None, edge_index=EDGES.T),
        write(tmp_path / "c.npz", **rows),
        write(tmp_path / "d.npz", **words, **masks),
        write_tables(tmp_path / "csv"),
        write_tables(tmp_path / "tsv", "\t", ".tsv"),
    ]
    ring = torch.zeros(4, 4)
    for first, second in EDGES:
        ring[first, second] = ring[second, first] = 1
    for path in forms:
        data = read_nodes(path, GraphRules())
        assert torch.equal(matrix(data), ring), path
        assert torch.equal(data.x, torch.from_numpy(X))
        assert data.y.tolist() == Y.tolist()
        assert {n: p.tolist() for n, p in data.parts.items()} == {
            "train": [0],
            "validation": [1],
            "test": [3],
        }
        assert data.num_classes == 2
        one_way = read_nodes(path, GraphRules(directed=True))
        assert matrix(one_way).sum() == 4


def test_edges_that_are_listed_both_ways_stay_single(tmp_path):
    both = np.concatenate([EDGES, EDGES[:2, ::-1]])
    weight = np.array([1.0, 2, 3, 4, 5, 6])
    data = read_nodes(write(tmp_path / "a.npz", edges=both, edge_weight=weight), GraphRules())
    expected = torch.zeros(4, 4)
    # The reverse of 2 -> 0 alone is made up, with its weight.
    for (source, target), value in zip(both.tolist(), weight, strict=True):
        expected[target, source] = value
    expected[2, 0] = 3
    assert torch.equal(matrix(data), expected)


def test_rows_are_normalised_and_parts_are_drawn(tmp_path):
    parts = dict.fromkeys(PARTS)
    path = write(tmp_path / "a.npz", y=np.array([0, 1, 1, 0]), **parts)
    rules = GraphRules(normalise="rows", validation=0.25, test=0.25)
    data = read_nodes(path, rules)
    assert torch.equal(data.x.sum(1), torch.ones(4))
    assert sorted(torch.cat(list(data.parts.values())).tolist()) == [0, 1, 2, 3]
    assert [len(part) for part in data.parts.values()] == [2, 1, 1]
    again = read_nodes(path, rules)
    assert all(torch.equal(data.parts[name], again.parts[name]) for name in data.parts)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"edges": np.array([[0, 9]])}, "edge 0 has target 9, but there are 4"),
        ({"edges": np.array([[-1, 0]])}, "edge 0 has source -1"),
        ({"edges": np.array([[0.5, 1]])}, "edges has float64"),
        ({"edges": np.array([[0, 1, 2]])}, r"edges must be \[E, 2\]"),
        ({"edges": None}, "has no edges"),
        ({"x": np.full((4, 2), np.nan)}, "8 features are NaN or infinite, the first of node 0"),
        ({"x": X[:3]}, r"x must be \[4, F\]"),
        ({"x": None}, "nodes have no features"),
        ({"y": None}, "has no labels"),
        ({"y": np.full(4, -1)}, "no node has a label"),
        ({"y": np.array([0, -2, 0, 0])}, "got -2 to 0"),
        ({"train": np.array([2])}, "a node of train has no label"),
        ({"train": np.array([7])}, "train names a node that does not exist"),
        ({"train": np.array([0, 3])}, "nodes number 3 is in train and in test"),
        ({"train": np.zeros(0, int)}, "no nodes to train on"),
        ({"edge_weight": np.ones(3)}, "4 edges have 3 weights"),
        ({"edge_weight": np.full(4, np.inf)}, "Weights must be finite"),
        (
            {"edges": None, "indptr": np.array([0, 5]), "indices": np.array([0])},
            "indptr ends with 5, but 1 indices follow",
        ),
    ],
)
def test_arrays_that_cannot_be(tmp_path, changes, text):
    with pytest.raises(InputError, match=text):
        read_nodes(write(tmp_path / "a.npz", **changes), GraphRules())


@pytest.mark.parametrize(
    ("tables", "text"),
    [
        ({"edges": ["source,target", "n0,n9"]}, "edges.csv:2: 'n9' is no node of nodes.csv"),
        ({"edges": ["from,to", "n0,n1"]}, "has no column 'source', 'target'"),
        ({"nodes": ["node,label,a", "n0,0,x"]}, "nodes.csv:2: 'a' has 'x'; expected a number"),
        (
            {"nodes": ["node,label,a", "n0,0,nan"], "edges": ["source,target", "n0,n0"]},
            "1 features are NaN",
        ),
        ({"nodes": ["node,label", "n0,0"]}, "nodes have no features"),
        ({"nodes": ["node,label,a", "n0,0,1", "n0,1,2"]}, "'n0' is there already"),
        ({"nodes": ["node,label,a", "n0,good,1"]}, "label must be a whole number"),
        ({"nodes": ["node,label,split,a", "n0,0,some,1"]}, "split is 'some'"),
    ],
)
def test_tables_that_cannot_be(tmp_path, tables, text):
    with pytest.raises(InputError, match=text):
        read_nodes(write_tables(tmp_path / "t", **tables), GraphRules())


def test_other_files_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for path, text in (
        (tmp_path / "empty", r"has no edges.csv or edges.tsv"),
        (tmp_path / "a.csv", "is no graph with labelled nodes"),
    ):
        with pytest.raises(InputError, match=text):
            read_nodes(path, GraphRules())
    with pytest.raises(InputError, match="is no file of pairs"):
        read_links(tmp_path / "a.txt", GraphRules())


def test_pairs_of_arrays_and_tables_are_the_same(tmp_path):
    train, held = [(0, 0), (0, 2), (1, 1), (2, 1)], [(1, 0)]
    lines = ["user,item,split", *(f"u{u},{i},train" for u, i in train)]
    lines += [f"u{u},{i},val" for u, i in held]
    (tmp_path / "a.csv").write_text("\n".join([*lines, "u2,2,test"]))
    np.savez(
        tmp_path / "a.npz",
        shape=np.array([3, 3]),
        train_indptr=np.array([0, 2, 3, 4]),
        train_indices=np.array([0, 2, 1, 1]),
        val_indptr=np.array([0, 0, 1, 1]),
        val_indices=np.array([0]),
        test_indptr=np.array([0, 0, 0, 1]),
        test_indices=np.array([2]),
    )
    expected = {
        "train": [[u, i + 3] for u, i in train],
        "validation": [[1, 3]],
        "test": [[2, 5]],
    }
    for name in ("a.csv", "a.npz"):
        data = read_links(tmp_path / name, GraphRules())
        assert {part: pairs.tolist() for part, pairs in data.parts.items()} == expected
        assert (data.num_nodes, data.first_item, data.num_items) == (6, 3, 3)
        # Held-out pairs are no edges.
        assert data.graph.num_edges == 2 * len(train)
    assert read_links(tmp_path / "a.csv", GraphRules()).names == ("u0", "u1", "u2", "0", "1", "2")


def test_pairs_of_any_two_nodes(tmp_path):
    lines = ["source\ttarget", "b\ta", "10\t9", "a\t9", "b\ta"]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    data = read_links(tmp_path / "a.tsv", GraphRules(validation=0.0, test=0.0))
    assert data.names == ("9", "10", "a", "b")
    assert data.first_item == 0
    # Twice the same pair is one.
    assert sorted(data.parts["train"].tolist()) == [[1, 0], [2, 0], [3, 2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,thing\n1,2\n", "expected columns user and item"),
        ("user,item,split\n1,2,later\n", "split is 'later'"),
        ("user,item,split\n1,2,train\n1,2,test\n", "is trained on, too"),
        ("user,item,split\n1,2,test\n", "no pairs to train on"),
        ("user,item\n", "has no pairs"),
    ],
)
def test_pairs_that_cannot_be(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_links(tmp_path / "a.csv", GraphRules())


def test_pairs_with_nodes_that_do_not_exist(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, edges=np.array([[0, 1], [0, 3]]), shape=np.array([2, 3]))
    with pytest.raises(InputError, match="pair 1 has item 3, but there are 3 of them, 0 to 2"):
        read_links(path, GraphRules())
    np.savez(path, edges=np.array([[0, 1]]), shape=np.array([2**31, 3]))
    with pytest.raises(InputError, match=r"at most 2\^31 together"):
        read_links(path, GraphRules())
