# SPDX-License-Identifier: Apache-2.0
"""Pairs that go together: users and items, or any two nodes; from a .npz file or a table.

Legend: P pairs.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gossamer.data.files.table_files import read_text, table_rows
from gossamer.data.graphs.nodes import TABLES, edges_of_arrays, read_whole, rows_of
from gossamer.data.graphs.rules import PARTS, GraphRules, both_ways
from gossamer.errors import InputError
from gossamer.graph import Graph
from gossamer.io.safe_files.arrays import ArrayFile, open_arrays

_COLUMNS = (("user", "item"), ("source", "target"))
_EXPECTED = (
    "Give a .npz file with edges [P, 2] or train_indptr, train_indices and shape, or a .csv or .tsv"
    " file with columns user and item, or source and target, and maybe split."
)


@dataclass(frozen=True)
class LinkData:
    """Pairs by part, in one numbering of nodes.

    Attributes:
        graph: pairs of the training part, both ways.
        parts: int64 [P, 2] each: train, validation, test.
        num_nodes: users and items together.
        first_item: items are the nodes from here on; 0 if any node can be the second of a pair.
        names: of nodes, where a table names them; empty if they have numbers only.
    """

    graph: Graph
    parts: dict[str, Tensor]
    num_nodes: int
    first_item: int
    names: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        pairs: dict[str, Tensor] | Tensor,
        num_nodes: int,
        first_item: int,
        rules: GraphRules,
        *,
        names: tuple[str, ...] = (),
        where: str = "data",
    ) -> "LinkData":
        """Checked and split; a pair that is listed twice counts once."""
        given = pairs if isinstance(pairs, dict) else {"train": pairs}
        for found in given.values():
            _check(found, num_nodes, first_item, where)
        if isinstance(pairs, dict):
            parts = {part: _once(found) for part, found in pairs.items()}
        else:
            parts = rules.split(_once(pairs))
        train = parts["train"]
        if not len(train):
            raise InputError(f"{where}: there are no pairs to train on.")
        codes = {part: found @ torch.tensor([num_nodes, 1]) for part, found in parts.items()}
        for part in PARTS[1:]:
            again = torch.isin(codes[part], codes["train"])
            if bool(again.any()):
                user, item = parts[part][again][0].tolist()
                raise InputError(
                    f"{where}: the pair {user}, {item} of {part} is trained on, too, and"
                    f" {int(again.sum()) - 1} more are. What is measured on must not be trained on."
                )
        edges, _ = both_ways(train.t().contiguous(), None)
        graph = Graph.of(edges, num_nodes=num_nodes)
        return cls(graph, parts, num_nodes, first_item, names)

    @property
    def num_items(self) -> int:
        """Nodes that can be the second of a pair."""
        return self.num_nodes - self.first_item

    def known(self, *parts: str) -> Tensor:
        """Pairs of some parts as sorted numbers, `user * num_nodes + item`."""
        code = torch.tensor([self.num_nodes, 1])
        codes = torch.cat([self.parts[part] @ code for part in parts])
        return codes.unique()  # type: ignore[no-untyped-call,no-any-return]


def read_links(path: Path, rules: GraphRules) -> LinkData:
    """Read a .npz, .csv or .tsv file of pairs."""
    if path.suffix in TABLES:
        return _from_table(path, rules)
    if path.suffix != ".npz":
        raise InputError(f"{path}: is no file of pairs. {_EXPECTED}")
    with open_arrays(path, _EXPECTED) as held:
        return _from_arrays(held, rules, str(path))


def _once(pairs: Tensor) -> Tensor:
    return pairs.unique(dim=0)  # type: ignore[no-untyped-call,no-any-return]


def _check(pairs: Tensor, num_nodes: int, first_item: int, where: str) -> None:
    last = first_item or num_nodes
    for name, nodes, low, high in (
        ("user", pairs[:, 0], 0, last),
        ("item", pairs[:, 1], first_item, num_nodes),
    ):
        wrong = ((nodes < low) | (nodes >= high)).nonzero().flatten()
        if len(wrong):
            raise InputError(
                f"{where}: pair {int(wrong[0])} has {name} {int(nodes[wrong[0]]) - low}, but there"
                f" are {high - low} of them, 0 to {high - low - 1}."
            )


def _from_arrays(held: ArrayFile, rules: GraphRules, where: str) -> LinkData:
    names = set(held.names)
    if not {"train_indptr", "train_indices"} <= names:
        if not names & {"edge_index", "edges"}:
            raise InputError(f"{where}: has no pairs. {_EXPECTED}")
        pairs = edges_of_arrays(held, where).t().contiguous()
        count = int(pairs.max()) + 1 if len(pairs) else 0
        if "shape" not in names:
            return LinkData.of(pairs, count, 0, rules, where=where)
        users, items = _shape(held, where)
        return LinkData.of(_shifted(pairs, users), users + items, users, rules, where=where)
    users, items = _shape(held, where)
    found = {}
    for part, own in (("train", "train"), ("validation", "val"), ("test", "test")):
        columns = torch.zeros(0, 2, dtype=torch.int64)
        if f"{own}_indptr" in names and f"{own}_indices" in names:
            starts, taken = (
                read_whole(held, f"{own}_{n}", "ui", where) for n in ("indptr", "indices")
            )
            rows = rows_of(starts, len(taken), f"{where}: {own}")
            columns = torch.from_numpy(np.stack([rows, taken.astype(np.int64)], axis=1))
        found[part] = _shifted(columns, users)
    if not len(found["validation"]):
        # Nothing may be chosen by what is reported: a part of the training pairs is.
        split = GraphRules(validation=rules.validation, test=0.0).split(_once(found["train"]))
        found |= {"train": split["train"], "validation": split["validation"]}
    return LinkData.of(found, users + items, users, rules, where=where)


def _shape(held: ArrayFile, where: str) -> tuple[int, int]:
    if "shape" not in held.names:
        raise InputError(f"{where}: has no shape (users, items). {_EXPECTED}")
    shape = read_whole(held, "shape", "ui", where)
    if shape.shape != (2,) or shape.min() < 1 or int(shape.astype(object).sum()) >= 2**31:
        raise InputError(f"{where}: shape must be users and items, at most 2^31 together.")
    return int(shape[0]), int(shape[1])


def _shifted(pairs: Tensor, users: int) -> Tensor:
    return pairs + torch.tensor([0, users])


def _from_table(path: Path, rules: GraphRules) -> LinkData:
    ends: tuple[str, str] = ("", "")

    def check(names: list[str], path: Path) -> None:
        nonlocal ends
        found = [each for each in _COLUMNS if set(each) <= set(names)]
        if not found:
            raise InputError(
                f"{path}:1: expected columns user and item, or source and target; found"
                f" {', '.join(names[:8])[:200]!r}. Put the names of the columns on top."
            )
        ends = found[0]

    rows: list[tuple[str, str]] = []
    splits: list[str] = []
    for row in table_rows(path, read_text(path), check):
        rows.append((row.cells[ends[0]].strip(), row.cells[ends[1]].strip()))
        part = row.cells.get("split", "").strip().lower()
        splits.append("validation" if part == "val" else part)
        if splits[-1] and splits[-1] not in PARTS:
            raise InputError(f"{row.where}: split is {part!r}; expected {', '.join(PARTS)}.")
    if not rows:
        raise InputError(f"{path}: has no pairs. {_EXPECTED}")
    apart = ends == _COLUMNS[0]
    firsts, seconds = (sorted({row[side] for row in rows}, key=_by_number) for side in (0, 1))
    if not apart:
        firsts = sorted({*firsts, *seconds}, key=_by_number)
    number = {name: place for place, name in enumerate(firsts)}
    start = len(firsts) if apart else 0
    second = {name: start + place for place, name in enumerate(seconds)} if apart else number
    pairs = torch.tensor([[number[a], second[b]] for a, b in rows], dtype=torch.int64)
    names = (*firsts, *seconds) if apart else tuple(firsts)
    given: dict[str, Tensor] | Tensor = pairs
    if any(splits):
        given = {
            part: pairs[[place for place, own in enumerate(splits) if (own or "train") == part]]
            for part in PARTS
        }
    return LinkData.of(given, len(names), start, rules, names=names, where=str(path))


def _by_number(name: str) -> tuple[int, int, str]:
    """Numbers in their order, then texts."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)
