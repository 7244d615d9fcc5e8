# SPDX-License-Identifier: Apache-2.0
"""Gray order of combinations: neighbours differ in one entry, so a kernel swaps one accumulator."""

from functools import lru_cache


@lru_cache(maxsize=256)
def gray_order(num_items: int, num_chosen: int) -> tuple[tuple[int, ...], ...]:
    """All increasing tuples of `num_chosen` out of range(num_items), each one entry from the last.

    The homogeneous scheme of Eades and McKay (1984; Knuth 7.2.1.3): with s = items - chosen,
    K(s, t) = K(s-1, t) without the top item, the reverse of K(s-1, t-1) with the top item and
    without the next, K(s, t-2) with both. Exactly one tuple entry changes at a time, not only one
    member of the set.
    """
    if num_chosen == 0:
        return ((),)
    if num_chosen == num_items:
        return (tuple(range(num_items)),)
    if num_chosen == 1:
        return tuple((item,) for item in range(num_items))
    top = num_items - 1
    order = list(gray_order(num_items - 1, num_chosen))
    order += [(*rest, top) for rest in reversed(gray_order(num_items - 2, num_chosen - 1))]
    order += [(*rest, top - 1, top) for rest in gray_order(num_items - 2, num_chosen - 2)]
    return tuple(order)
