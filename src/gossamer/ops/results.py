# SPDX-License-Identifier: Apache-2.0
"""Memory of large results, used again from step to step.

malloc of glibc gives every array of more than 32 MB back to the system when it is freed. A step of
a large graph frees many, and mapping their pages again took more than half of it. Results that come
from here keep their memory for the next one of their size. Never more is held than results took at
once, blocks that nobody takes go after a while, and `drop_results` gives all of it back.
"""

from torch import Tensor, bfloat16, float32, strided

from gossamer.errors import ResourceError
from gossamer.ops import _native
from gossamer.ops.addresses import direct_address
from gossamer.ops.without_native import why_missing

__all__ = ["drop_results", "is_large", "new_result", "offer_huge_pages", "result_bytes"]

# Smaller arrays stay with malloc, which keeps them.
_LEAST_BYTES = 4 << 20


def is_large(like: Tensor, rows: int, width: int) -> bool:
    """Whether memory of such a result is used again."""
    is_known = like.device.type == "cpu" and like.dtype in (float32, bfloat16)
    return is_known and why_missing() is None and rows * width * like.element_size() >= _LEAST_BYTES


def new_result(like: Tensor, rows: int, width: int) -> Tensor:
    """An uninitialised tensor [rows, width] of the dtype and device of another."""
    if is_large(like, rows, width):
        try:
            return _native.new_result(rows, width, like.dtype is bfloat16)
        except ResourceError:  # torch says so in the words that the ops know
            drop_results()
    return like.new_empty(rows, width)


def drop_results() -> None:
    """Give memory of results that were freed back to the system."""
    _native.drop_results()


def result_bytes() -> tuple[int, int]:
    """Bytes of results in use, and of those that were freed and are kept."""
    return _native.result_bytes()


def offer_huge_pages(x: Tensor) -> None:
    """Move the memory of a tensor into pages of 2 MiB where the system can; it keeps its address.

    Rows that edges find all over a large tensor cost an address translation each. In small pages,
    which is where torch puts tensors, most of these come from memory, too.
    """
    at = direct_address(x) if x.layout is strided and x.is_contiguous() else 0
    if at and why_missing() is None:
        _native.offer_huge_pages(at, x.nbytes)
