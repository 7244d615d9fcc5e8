# SPDX-License-Identifier: Apache-2.0
"""A x, kept from step to step while features and graph stay the same.

In full-batch training the features of the first layer are often a constant. Then A x is one, too,
and a step has no product with the graph left in that layer. It is made when the same tensor comes
for the second time, so that features which change in every step (dropout, batches) cost nothing.

"The same" means: the same tensor object, at the same version as torch counts them, at the same
address, and the same matrix. Changes that torch does not count (`x.data`, an array of numpy that
shares the memory) are not seen: call `forget` after them.

Features that come again and are read by the edges each time (`reread`) are moved into large pages.
"""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.graph.structure import Propagation
from gossamer.ops.addresses import direct_address
from gossamer.ops.results import offer_huge_pages
from gossamer.ops.spmm import EdgeMatrix

_KEPT = torch.float32, torch.bfloat16
# Bytes of features from which on the addresses of rows are not at hand; moving them is a copy.
_WORTH_MOVING = 32 << 20


class KeptProducts:
    """The last A x of a layer, and what it belongs to.

    Attributes:
        features: x as a sparse matrix, where that is faster than A x.
        is_decided: whether that is known.
    """

    def __init__(self) -> None:
        self.forget()
        self._read: weakref.ref[Tensor] | None = None
        self._moved = 0

    def forget(self) -> None:
        """Nothing is kept any more."""
        self._x: weakref.ref[Tensor] | None = None
        self._key: tuple[int, int, int] | None = None
        self._product: Tensor | None = None
        self.features: EdgeMatrix | None = None
        self.is_decided = False

    def __deepcopy__(self, memo: object) -> "KeptProducts":
        return KeptProducts()

    def __getstate__(self) -> dict[str, object]:
        return {}

    def __setstate__(self, state: object) -> None:
        self.__init__()  # type: ignore[misc]

    def seen(self, x: Tensor, propagation: Propagation | None = None) -> bool:
        """Whether x and the matrix are what they were in the last call; they are remembered."""
        learns = propagation is not None and propagation.values is not None
        if x.requires_grad or learns or x.is_inference() or x.dtype not in _KEPT:
            self.forget()
            return False
        number = 0 if propagation is None else propagation.matrix.number
        elements = x if x.layout is torch.strided else x.values()
        key = x._version, elements.data_ptr(), number
        if self._x is not None and self._x() is x and self._key == key:
            return True
        self._x, self._key, self._product = weakref.ref(x), key, None
        self.features, self.is_decided = None, False
        return False

    def reread(self, x: Tensor) -> None:
        """Edges read these features now; large ones that come again get large pages, once."""
        if x.layout is not torch.strided or x.nbytes < _WORTH_MOVING:
            return
        if self._read is None or self._read() is not x:
            self._read, self._moved = weakref.ref(x), 0
        elif self._moved != direct_address(x):
            self._moved = direct_address(x)
            offer_huge_pages(x)

    def product(self, x: Tensor, propagate: Callable[[Tensor], Tensor]) -> Tensor:
        """A x, computed once; after `seen` gave True."""
        if self._product is None:
            with torch.no_grad():
                self._product = propagate(x)
        return self._product
