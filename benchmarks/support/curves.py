# SPDX-License-Identifier: Apache-2.0
"""Validation AUC over epochs as an SVG picture: a panel for each log, a line for each arm."""

import statistics

_WIDTH, _HEIGHT, _LEFT, _TOP, _KEY = 360, 240, 52, 28, 170
_COLOURS = ("#222222", "#888888", "#1f77b4", "#7fb3d5", "#d62728", "#f1948a", "#2ca02c", "#98df8a")


def curves_svg(runs):
    """The picture, from runs that hold `data`, `arm` and `curve`; means of the seeds."""
    logs = list(dict.fromkeys(run["data"] for run in runs))
    arms = list(dict.fromkeys(run["arm"] for run in runs))
    colours = {arm: _COLOURS[i % len(_COLOURS)] for i, arm in enumerate(arms)}
    parts = [part for i, log in enumerate(logs) for part in _panel(runs, log, i * _WIDTH, colours)]
    right = len(logs) * _WIDTH
    for i, (arm, colour) in enumerate(colours.items()):
        y = _TOP + 18 * i
        parts.append(_line([(right, y), (right + 20, y)], colour))
        parts.append(_text(right + 26, y + 4, arm))
    size = f'width="{right + _KEY}" height="{_HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _panel(runs, log, left, colours):
    means = {}
    for arm in colours:
        curves = [run["curve"] for run in runs if (run["data"], run["arm"]) == (log, arm)]
        if curves:
            points = zip(*curves, strict=False)
            means[arm] = [statistics.fmean(point["auc"] for point in epoch) for epoch in points]
    low = min(min(curve) for curve in means.values())
    high = max(max(curve) for curve in means.values())
    last = max(len(curve) for curve in means.values())
    x0, x1, y0, y1 = left + _LEFT, left + _WIDTH - 20, _HEIGHT - 36, _TOP

    def place(epoch, value):
        across = (epoch - 1) / max(1, last - 1)
        return x0 + across * (x1 - x0), y0 + (value - low) / max(high - low, 1e-9) * (y1 - y0)

    yield _text(x0, 16, f"{log}: validation AUC by epoch")
    yield _line([(x0, y1), (x0, y0), (x1, y0)], "#444444")
    for value in (low, (low + high) / 2, high):
        yield _text(left + 4, place(1, value)[1] + 4, f"{value:.4f}")
    for epoch in range(1, last + 1):
        yield _text(place(epoch, low)[0] - 3, y0 + 18, str(epoch))
    for arm, curve in means.items():
        yield _line([place(i + 1, value) for i, value in enumerate(curve)], colours[arm])


def _line(points, colour):
    placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{placed}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _text(x, y, text):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11">{text}</text>'
