# SPDX-License-Identifier: Apache-2.0
"""Row patterns in Gray order, and which column of a tile gets which of them.

Every row pattern must serve exactly g columns.

A transportation problem per tile, solved for all tiles at once: greedy, then pairwise swaps until
none improves. Legend: T tiles, W = C*g columns, C row patterns, g columns per pattern, m rows.
"""

from functools import lru_cache

import torch

# Tiles are searched in slices of about this many (column, pattern) pairs, to bound the memory.
SLICE_PAIRS = 1 << 22
# Scores arrive scaled to about 1: smaller gains are rounding, and chasing them might never end.
MIN_GAIN = 1e-9


@lru_cache(maxsize=256)
def gray_order(num_items: int, num_chosen: int) -> tuple[tuple[int, ...], ...]:
    """All increasing tuples of `num_chosen` out of range(num_items), each one entry from the last.

    Neighbours differ in one entry, so that a kernel swaps one accumulator.

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


def assign_columns(
    scores_TWm: torch.Tensor, members_Cm: torch.Tensor, num_repeats: int
) -> torch.Tensor:
    """int64 [T, W]: row pattern per column, each used `num_repeats` times, for a high score."""
    step = max(1, SLICE_PAIRS // (scores_TWm.shape[1] * len(members_Cm)))
    found = []
    for part_TWm in torch.split(scores_TWm, step):
        gains_TWC = part_TWm @ members_Cm.T.to(scores_TWm.dtype)
        found.append(_improve(gains_TWC, _greedy(gains_TWC, num_repeats)))
    return torch.cat(found)


def _greedy(gains_TWC: torch.Tensor, num_repeats: int) -> torch.Tensor:
    """Take (column, pattern) pairs from the best down while the column is free and the pattern too.

    The sort is stable, so equal gains go to the lower column, then to the earlier pattern.
    """
    num_tiles, width, num_patterns = gains_TWC.shape
    order = gains_TWC.flatten(1).sort(dim=1, descending=True, stable=True).indices.T.contiguous()
    tiles_T = torch.arange(num_tiles, device=gains_TWC.device)
    ids_TW = torch.full((num_tiles, width), -1, device=gains_TWC.device)
    room_TC = torch.full((num_tiles, num_patterns), num_repeats, device=gains_TWC.device)
    for column_T, pattern_T in zip(order // num_patterns, order % num_patterns, strict=True):
        before_T = ids_TW[tiles_T, column_T]
        take_T = (before_T < 0) & (room_TC[tiles_T, pattern_T] > 0)
        ids_TW[tiles_T, column_T] = torch.where(take_T, pattern_T, before_T)
        room_TC[tiles_T, pattern_T] -= take_T.long()
    return ids_TW


def _improve(gains_TWC: torch.Tensor, ids_TW: torch.Tensor) -> torch.Tensor:
    """Swap the patterns of two columns, the best pair of each tile at a time, while it gains."""
    num_tiles, width, num_patterns = gains_TWC.shape
    num_repeats = width // num_patterns
    # Columns sorted by pattern: slot p*g + i holds the i-th column of pattern p.
    columns_TW = ids_TW.sort(dim=1, stable=True).indices
    active = torch.arange(num_tiles, device=gains_TWC.device)
    own = torch.arange(num_patterns, device=gains_TWC.device)
    for _ in range(width * num_patterns):
        columns = columns_TW[active]
        held = gains_TWC[active].gather(1, columns.unsqueeze(-1).expand(-1, -1, num_patterns))
        held_TCgC = held.view(-1, num_patterns, num_repeats, num_patterns)
        # What the tile gains when a column of pattern p takes pattern q instead; best column per p.
        moves = held_TCgC - held_TCgC[:, own, :, own].permute(1, 0, 2).unsqueeze(-1)
        best_TCC, mover_TCC = moves.max(dim=2)
        swaps_TCC = best_TCC + best_TCC.transpose(1, 2)
        gain_T, pair_T = swaps_TCC.flatten(1).max(dim=1)
        better = gain_T > MIN_GAIN
        if not better.any():
            break
        active, pair_T = active[better], pair_T[better]
        p, q = pair_T // num_patterns, pair_T % num_patterns
        mover = mover_TCC[better]
        rows = torch.arange(len(active), device=gains_TWC.device)
        slot_p = p * num_repeats + mover[rows, p, q]
        slot_q = q * num_repeats + mover[rows, q, p]
        column_p, column_q = columns_TW[active, slot_p], columns_TW[active, slot_q]
        columns_TW[active, slot_p], columns_TW[active, slot_q] = column_q, column_p
    owners = own.repeat_interleave(num_repeats).expand_as(columns_TW)
    return torch.empty_like(columns_TW).scatter_(1, columns_TW, owners)
