# SPDX-License-Identifier: Apache-2.0
"""A table as plain arrays and settings, and back: what files hold of it."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import nn

from gossamer.errors import FormatError
from gossamer.nn.layers.tables.base import TableLayer
from gossamer.nn.layers.tables.packed import PackedEmbedding, PackedEmbeddingBag
from gossamer.nn.layers.tables.trained import Embedding, EmbeddingBag, Quantising, TrainedTable
from gossamer.ops.table import Rows


@dataclass(frozen=True, eq=False)
class TableState:
    """A table without its place in a model.

    Attributes:
        form: "trained" or "packed".
        quantising: how it is trained; of a packed one, bits, granularity and half_scale count.
        arrays: `rows` (float32, or the bytes of codes), and where there are: `scales`, `row_map`,
            `top`, `counts`.
    """

    form: Literal["trained", "packed"]
    quantising: Quantising
    arrays: dict[str, torch.Tensor]

    @classmethod
    def of(cls, layer: TableLayer) -> "TableState":
        """The state of a table; its tensors, not copies."""
        held = {name: layer._buffers.get(name) for name in layer.TENSORS[1:]}
        arrays = {name: tensor for name, tensor in held.items() if tensor is not None}
        arrays["rows"] = layer.rows().data.detach()
        rounding = layer.rounding
        if isinstance(layer, TrainedTable):
            return cls("trained", layer.quantising, arrays)
        half = rounding is not None and rounding.half
        return cls("packed", Quantising(layer.bits, layer.granularity, half_scale=half), arrays)

    def expected(self, shape: tuple[int, ...], num_rows: int) -> dict[str, Any]:
        """Dtype and shape of each array of a table of this shape with so many rows."""
        rounding, (num_ids, width) = self.quantising.rounding(), shape
        is_trained = self.form == "trained"
        is_coded = rounding is not None and not (is_trained and self.quantising.shadow)
        found: dict[str, Any] = {"rows": (torch.float32, (num_rows, width))}
        if rounding is not None and is_coded:
            found["rows"] = (torch.uint8, (num_rows, rounding.row_bytes(width)))
            found["scales"] = (torch.float32, (num_rows if rounding.by_row else 1,))
        if rounding is not None and is_trained and not rounding.by_row:
            found |= {"top": (torch.float32, ()), "counts": (torch.int64, (2,))}
        if "row_map" in self.arrays:
            found["row_map"] = (torch.int32, (num_ids,))
        return found

    def fault(self, shape: tuple[int, ...]) -> str | None:
        """What is wrong with the arrays of a table of this shape; None if nothing is.

        Numbers are looked at by `check`.
        """
        if len(shape) != 2 or "rows" not in self.arrays or self.arrays["rows"].ndim != 2:
            return "a table is a matrix"
        num_rows = len(self.arrays["rows"])
        if "row_map" not in self.arrays and num_rows != shape[0]:
            return f"{num_rows} rows for {shape[0]} ids, without a map"
        expected = self.expected(shape, num_rows)
        if set(expected) != set(self.arrays):
            return f"has the arrays {sorted(self.arrays)}, expected {sorted(expected)}"
        for name, (dtype, wanted) in expected.items():
            found = self.arrays[name]
            if found.dtype is not dtype or tuple(found.shape) != wanted:
                return (
                    f"{name} must be {dtype} {list(wanted)}, is {found.dtype} {list(found.shape)}"
                )
        return None

    def check(self, shape: tuple[int, ...], where: str) -> Rows:
        """Look at every number that a lookup relies on; FormatError says what is wrong."""
        fault = self.fault(shape)
        if fault is not None:
            raise FormatError(f"{where}: {fault}.")
        arrays, rounding = self.arrays, self.quantising.rounding()
        if "top" in arrays and not 0 <= float(arrays["top"]) < float("inf"):
            raise FormatError(f"{where}: the largest magnitude must be finite.")
        if "counts" in arrays and bool((arrays["counts"] < 0).any()):
            raise FormatError(f"{where}: counts must not be negative.")
        rows = Rows(arrays["rows"], shape[1], rounding, arrays.get("scales"), arrays.get("row_map"))
        rows.check(where)
        return rows

    def restored(self, place: Any, where: str) -> TableLayer:
        """The table in the place of an ordinary one or of a table; every number is checked."""
        mode = getattr(place, "mode", None)
        last = getattr(place, "include_last_offset", False)
        shape = (place.num_embeddings, place.embedding_dim)
        rows = self.check(shape, where)
        if self.form == "packed":
            packed = PackedEmbedding if mode is None else PackedEmbeddingBag
            made: TableLayer = packed(rows, place.padding_idx, mode, last)
        else:
            made = self._trained(place, mode, last)
        made.sparse = place.sparse
        return made

    def _trained(self, place: Any, mode: str | None, last: bool) -> TrainedTable:
        arrays, is_float = self.arrays, self.arrays["rows"].is_floating_point()
        settings: dict[str, Any] = {"include_last_offset": last, **asdict(self.quantising)}
        if mode is not None:
            settings["mode"] = mode
        if "row_map" in arrays:
            settings["num_rows"] = len(arrays["rows"])
        kind = Embedding if mode is None else EmbeddingBag
        sizes = (place.num_embeddings, place.embedding_dim, place.padding_idx)
        made = kind(*sizes, **settings, device="meta")
        made.weight = nn.Parameter(arrays["rows"], requires_grad=is_float)
        for name in ("row_map", "scales", "top", "counts"):
            if name in arrays:
                made._buffers[name] = arrays[name]
        return made

    def copy_into(self, layer: nn.Module) -> bool:
        """Overwrite a table of the same form and sizes in place; False if it is another one."""
        if not isinstance(layer, TableLayer):
            return False
        own = TableState.of(layer)
        if (own.form, own.quantising) != (self.form, self.quantising):
            return False
        pairs = [(own.arrays.get(name), array) for name, array in self.arrays.items()]
        if set(own.arrays) != set(self.arrays) or any(
            old is None or old.shape != new.shape or old.dtype is not new.dtype
            for old, new in pairs
        ):
            return False
        for old, new in pairs:
            if old is not None:
                old.copy_(new)
        return True
