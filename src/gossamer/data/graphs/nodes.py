# SPDX-License-Identifier: Apache-2.0
"""Nodes with features and classes, from a .npz file or from a folder with two tables.

Legend: N nodes, E edges, F features.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer.data.files.table_files import TableRow, read_text, table_rows
from gossamer.data.graphs.rules import PARTS, GraphRules, both_ways, check_parts
from gossamer.errors import InputError, ResourceError
from gossamer.graph import Graph
from gossamer.io.safe_files.arrays import ArrayFile, open_arrays
from gossamer.io.safe_files.checks import available_bytes

__all__ = ["NodeData", "holds_graph", "read_nodes"]

UNKNOWN = -1
MAX_CLASSES = 10_000
TABLES = (".csv", ".tsv")
_EDGES, _NODES = "edges", "nodes"
_NAMES = {"validation": ("validation", "val"), "train": ("train",), "test": ("test",)}
_EXPECTED = (
    "Give a .npz file with edge_index [2, E] or edges [E, 2], x [N, F], y [N] and, if you have"
    " them, train, val and test; or a folder with edges.csv (source, target) and nodes.csv (node,"
    " label, split, features)."
)


@dataclass(frozen=True)
class NodeData:
    """A graph whose nodes have classes.

    Attributes:
        graph: all edges.
        x: float32 [N, F].
        y: int64 [N]; -1 where the class is not known.
        parts: numbers of nodes: train, validation, test.
        edges: int64 [2, E], as the graph has them.
        weight: float32 [E], or None.
    """

    graph: Graph
    x: Tensor
    y: Tensor
    parts: dict[str, Tensor]
    edges: Tensor
    weight: Tensor | None = None

    @property
    def num_classes(self) -> int:
        """Classes are below it."""
        return int(self.y.max()) + 1

    @classmethod
    def of(
        cls,
        edges: Tensor,
        x: Tensor,
        y: Tensor,
        rules: GraphRules,
        *,
        weight: Tensor | None = None,
        parts: dict[str, Tensor] | None = None,
        where: str = "data",
    ) -> "NodeData":
        """Checked, with edges both ways and features normalised as the rules say."""
        bad = x.numel() - int(torch.isfinite(x).sum())
        if bad:
            node = int((~torch.isfinite(x)).any(1).nonzero()[0])
            raise InputError(
                f"{where}: {bad} features are NaN or infinite, the first of node {node}. Give"
                " finite numbers."
            )
        known = (y != UNKNOWN).nonzero().flatten()
        if not len(known):
            raise InputError(f"{where}: no node has a label.")
        if int(y.min()) < UNKNOWN or int(y.max()) >= MAX_CLASSES:
            raise InputError(
                f"{where}: labels must be whole numbers in [0, {MAX_CLASSES}), or -1 where they are"
                f" not known; got {int(y.min())} to {int(y.max())}."
            )
        try:
            graph = Graph.of(edges, weight, num_nodes=len(x))
            if not rules.directed:
                edges, weight = both_ways(edges, weight)
                graph = Graph.of(edges, weight, num_nodes=len(x))
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        if parts is None:
            parts = rules.split(known)
        else:
            for part, members in parts.items():
                if bool((y[members] == UNKNOWN).any()):
                    raise InputError(f"{where}: a node of {part} has no label.")
            check_parts(parts, "nodes", where)
        if rules.normalise == "rows":
            sums = x.sum(1, keepdim=True)
            x = x / torch.where(sums == 0, 1.0, sums)
        return cls(graph, x, y, parts, edges, weight)

    def part(self, numbers: Tensor) -> "NodeData":
        """The same graph with these nodes to train on and none to measure on."""
        none = numbers.new_zeros(0)
        return replace(self, parts={"train": numbers, "validation": none, "test": none})


def read_nodes(path: Path, rules: GraphRules) -> NodeData:
    """Read a .npz file, or a folder with edges and nodes as tables."""
    if path.is_dir():
        return _from_tables(path, rules)
    if path.suffix != ".npz":
        raise InputError(f"{path}: is no graph with labelled nodes. {_EXPECTED}")
    with open_arrays(path, _EXPECTED) as held:
        return _from_arrays(held, rules, str(path))


def holds_graph(path: Path) -> bool:
    """Whether a path is a folder with edges, or a .npz file with some."""
    if path.is_dir():
        return any((path / f"{_EDGES}{ending}").is_file() for ending in TABLES)
    if path.suffix != ".npz" or not path.is_file():
        return False
    with open_arrays(path, _EXPECTED) as held:
        return bool({"edges", "edge_index", "indptr"} & set(held.names))


def read_whole(held: ArrayFile, name: str, kinds: str, where: str) -> np.ndarray:
    """One array, if its numbers are of one of the kinds: "ui" whole, "f" real, "b" true or not."""
    header = held.header(name)
    if header.dtype.kind not in kinds:
        raise InputError(f"{where}: {name} has {header.dtype}; that is not what it should hold.")
    return held.read(header)[0]


def edges_of_arrays(held: ArrayFile, where: str) -> Tensor:
    """Sources and targets [2, E] of edge_index, of edges, or of rows of targets."""
    if "edge_index" in held.names:
        edges = read_whole(held, "edge_index", "ui", where)
        if edges.ndim != 2 or len(edges) != 2:
            raise InputError(f"{where}: edge_index must be [2, E], got {list(edges.shape)}.")
    elif "edges" in held.names:
        edges = read_whole(held, "edges", "ui", where)
        if edges.size % 2 or (edges.ndim == 2 and edges.shape[1] != 2) or edges.ndim > 2:
            raise InputError(f"{where}: edges must be [E, 2], got {list(edges.shape)}.")
        edges = edges.reshape(-1, 2).T
    else:
        starts, columns = (read_whole(held, n, "ui", where) for n in ("indptr", "indices"))
        edges = np.stack([columns.astype(np.int64), rows_of(starts, len(columns), where)])
    return torch.from_numpy(np.ascontiguousarray(edges.astype(np.int64)))


def rows_of(starts: np.ndarray, count: int, where: str) -> np.ndarray:
    """The row of each entry of a matrix in rows."""
    counts: Any = np.diff(starts.astype(np.int64))
    if starts.ndim != 1 or not len(starts) or starts[0] != 0 or (counts < 0).any():
        raise InputError(f"{where}: indptr must begin with 0 and not decrease.")
    if counts.sum() != count:
        raise InputError(f"{where}: indptr ends with {counts.sum()}, but {count} indices follow.")
    return np.repeat(np.arange(len(counts)), counts)


def _from_arrays(held: ArrayFile, rules: GraphRules, where: str) -> NodeData:
    names = set(held.names)
    if not ({"edge_index"} <= names or {"edges"} <= names or {"indptr", "indices"} <= names):
        raise InputError(f"{where}: has no edges. {_EXPECTED}")
    if "y" not in names:
        raise InputError(f"{where}: has no labels (y). {_EXPECTED}")
    y = read_whole(held, "y", "ui", where)
    if y.ndim != 1:
        raise InputError(f"{where}: y must be [N], got {list(y.shape)}.")
    x = _features(held, len(y), where)
    weight = None
    if "edge_weight" in names:
        weight = torch.from_numpy(read_whole(held, "edge_weight", "uif", where).astype(np.float32))
    edges = edges_of_arrays(held, where)
    if weight is not None and len(weight) != edges.shape[1]:
        raise InputError(f"{where}: {edges.shape[1]} edges have {len(weight)} weights.")
    labels = torch.from_numpy(y.astype(np.int64))
    parts = _parts(held, len(y), where)
    return NodeData.of(edges, x, labels, rules, weight=weight, parts=parts, where=where)


def _features(held: ArrayFile, num_nodes: int, where: str) -> Tensor:
    if "x" in held.names:
        x = read_whole(held, "x", "uif", where)
        if x.ndim != 2 or len(x) != num_nodes or not x.shape[1]:
            raise InputError(f"{where}: x must be [{num_nodes}, F], got {list(x.shape)}.")
        return torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    if not {"x_indptr", "x_indices"} <= set(held.names):
        raise InputError(f"{where}: nodes have no features (x). {_EXPECTED}")
    starts, columns = (read_whole(held, n, "ui", where) for n in ("x_indptr", "x_indices"))
    rows = rows_of(starts, len(columns), f"{where}: x")
    width = int(columns.max()) + 1 if len(columns) else 0
    if "x_shape" in held.names:
        shape = read_whole(held, "x_shape", "ui", where)
        width = max(width, int(shape[1])) if shape.shape == (2,) else width
    if len(starts) != num_nodes + 1 or not width or (columns < 0).any():
        raise InputError(f"{where}: features of {len(starts) - 1} nodes, labels of {num_nodes}.")
    if 4 * num_nodes * width > available_bytes():
        raise ResourceError(
            f"{where}: {num_nodes} x {width} features need {4 * num_nodes * width} bytes of memory,"
            f" {available_bytes()} are free. Give fewer of them."
        )
    made = np.zeros((num_nodes, width), dtype=np.float32)
    values: Any = 1.0
    if "x_data" in held.names and held.header("x_data").size:
        values = read_whole(held, "x_data", "uif", where)
        if values.shape != columns.shape:
            raise InputError(f"{where}: x_data must be as long as x_indices.")
    made[rows, columns] = values
    return torch.from_numpy(made)


def _parts(held: ArrayFile, num_nodes: int, where: str) -> dict[str, Tensor] | None:
    """Numbers of nodes, or which of them are meant; None if there are none."""
    found: dict[str, Tensor] = {}
    for part in PARTS:
        asked = [name for each in _NAMES[part] for name in (each, f"{each}_mask")]
        for name in (name for name in asked if name in held.names):
            members = read_whole(held, name, "uib", where)
            if members.ndim != 1 or (members.dtype.kind == "b" and len(members) != num_nodes):
                raise InputError(f"{where}: {name} must be numbers of nodes, or true or not [N].")
            if members.dtype.kind == "b":
                members = members.nonzero()[0]
            if len(members) and not 0 <= members.min() <= members.max() < num_nodes:
                raise InputError(f"{where}: {name} names a node that does not exist.")
            found[part] = torch.from_numpy(members.astype(np.int64))
            break
    if not found:
        return None
    return {part: found.get(part, torch.zeros(0, dtype=torch.int64)) for part in PARTS}


def _from_tables(folder: Path, rules: GraphRules) -> NodeData:
    edge_file, node_file = (_one_of(folder, name) for name in (_EDGES, _NODES))
    numbers: dict[str, int] = {}
    features: list[list[float]] = []
    labels: list[int] = []
    members: dict[str, list[int]] = {part: [] for part in PARTS}
    columns: list[str] = []
    for row in table_rows(node_file, read_text(node_file), _need("node", "label")):
        columns = columns or [n for n in row.cells if n and n not in ("node", "label", "split")]
        name = row.cells["node"].strip()
        if name in numbers:
            raise InputError(f"{row.where}: node {name!r} is there already.")
        numbers[name] = len(labels)
        features.append([number_in(row, column) for column in columns])
        labels.append(_label_in(row))
        part = row.cells.get("split", "").strip().lower()
        part = "validation" if part == "val" else part
        if part and part not in PARTS:
            raise InputError(f"{row.where}: split is {part!r}; expected {', '.join(PARTS)}.")
        if part:
            members[part].append(numbers[name])
    if not columns:
        raise InputError(f"{node_file}: nodes have no features. {_EXPECTED}")
    pairs, weights = [], []
    for row in table_rows(edge_file, read_text(edge_file), _need("source", "target")):
        ends = [row.cells[name].strip() for name in ("source", "target")]
        for end in ends:
            if end not in numbers:
                raise InputError(f"{row.where}: {end!r} is no node of {node_file.name}.")
        pairs.append([numbers[end] for end in ends])
        if "weight" in row.cells:
            weights.append(number_in(row, "weight"))
    return NodeData.of(
        torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous(),
        torch.tensor(features, dtype=torch.float32),
        torch.tensor(labels, dtype=torch.int64),
        rules,
        weight=torch.tensor(weights) if weights else None,
        parts={part: torch.tensor(m, dtype=torch.int64) for part, m in members.items()}
        if any(members.values())
        else None,
        where=str(folder),
    )


def _one_of(folder: Path, name: str) -> Path:
    found = [folder / f"{name}{ending}" for ending in TABLES]
    for path in found:
        if path.is_file():
            return path
    raise InputError(f"{folder}: has no {name}.csv or {name}.tsv. {_EXPECTED}")


def _need(*wanted: str) -> Any:
    def check(names: list[str], path: Path) -> None:
        missing = [name for name in wanted if name not in names]
        if missing:
            raise InputError(
                f"{path}:1: has no column {', '.join(map(repr, missing))}; found"
                f" {', '.join(names[:8])[:200]!r}. Put the names of the columns on top."
            )

    return check


def number_in(row: TableRow, column: str) -> float:
    """The number in a cell; one that is not finite is found later, with its node."""
    try:
        return float(row.cells[column])
    except ValueError as error:
        found = row.cells[column][:60]
        raise InputError(f"{row.where}: {column!r} has {found!r}; expected a number.") from error


def _label_in(row: TableRow) -> int:
    found = row.cells["label"].strip()
    if not found:
        return UNKNOWN
    if not found.isdecimal() or int(found) >= MAX_CLASSES:
        raise InputError(
            f"{row.where}: label must be a whole number in [0, {MAX_CLASSES}), or empty, got"
            f" {found[:60]!r}."
        )
    return int(found)
