# SPDX-License-Identifier: Apache-2.0
"""A table rounded to int4 with offsets so that what is multiplied with it stays: GPTQ's way.

Columns are rounded from left to right, and those behind make up for the error on the activations
of a Gram matrix. Levels of a span are taken when the pass reaches it. The same table is looked up,
too: there all directions count alike, which is what the damping says.

Legend: R rows, K columns, G spans of a row.
"""

import torch

from gossamer.formats.grid import offset_grid

SPAN = 32


def compensated(weight_RK, gram_KK, damping):
    """Codes [R, K], scales and offsets [R, G] in float32."""
    size = len(gram_KK)
    gram = gram_KK.double() + damping * float(gram_KK.diagonal().mean()) * torch.eye(size)
    upper_KK = torch.linalg.cholesky(torch.linalg.inv(gram), upper=True).float()
    rest, codes, levels = weight_RK.clone(), [], []
    for first in range(0, size, SPAN):
        last = min(first + SPAN, size)
        span_RS = rest[:, first:last].clone()
        scale_R, offset_R = (one.float() for one in offset_grid.best_levels(span_RS))
        errors_RS, columns = torch.empty_like(span_RS), []
        for column in range(last - first):
            place = first + column
            wanted_R = span_RS[:, column]
            steps_R = torch.where(scale_R > 0, (wanted_R - offset_R) / scale_R, 0.0)
            code_R = steps_R.round().clamp(0, offset_grid.TOP)
            error_R = (wanted_R - code_R * scale_R - offset_R) / upper_KK[place, place]
            errors_RS[:, column] = error_R
            span_RS[:, column:] -= error_R[:, None] * upper_KK[place, place:last]
            columns.append(code_R)
        rest[:, last:] -= errors_RS @ upper_KK[first:last, last:]
        codes.append(torch.stack(columns, 1))
        levels.append(torch.stack([scale_R, offset_R]))
    scales_RG, offsets_RG = torch.stack(levels, -1)
    return torch.cat(codes, 1), scales_RG, offsets_RG


def gram_of(hidden, batches):
    """Mean of h h^T over what `hidden(batch)` gives, [..., K]."""
    total, count = 0.0, 0
    for batch in batches:
        rows = hidden(batch).flatten(0, -2)
        total, count = total + rows.T @ rows, count + len(rows)
    return total / count
