# SPDX-License-Identifier: Apache-2.0
"""A small model of clicks as an artifact, with several ids of a category and numbers."""

import json

import torch

import gossamer
from gossamer.data.clicks import FEATURES_FILE, columns_of, open_clicks
from gossamer.zoo import DLRM

ROLES = {
    "format": "table",
    "label": "click",
    "numbers": ["age"],
    "categories": [
        {"name": "site", "columns": ["site"], "ids": "vocabulary", "unknown": "error"},
        {"name": "tags", "columns": ["tags"], "ids": "hash", "size": 11, "separator": "|"},
    ],
    "validation": 0.0,
    "test": 0.0,
}


def click_rows(count, seed=0):
    """Rows as a client sends them."""
    draws = torch.randint(1000, (count, 3), generator=torch.Generator().manual_seed(seed)).tolist()
    return [
        {"age": a % 90, "site": f"s{b % 5}", "tags": [f"t{c % 4}", f"t{c % 7}"][: c % 3]}
        for a, b, c in draws
    ]


def save_clicks(folder):
    lines = [{**row, "click": i % 2} for i, row in enumerate(click_rows(60))]
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = open_clicks(folder / "arrays", columns_of(ROLES), log)
    torch.manual_seed(0)
    model = DLRM(1, data.features.rows, width=4, bottom=(8,), top=(8,)).eval()
    with torch.no_grad():
        for table in model.tables:
            table.weight.normal_()
    data.features.mark(model, "log")
    gossamer.save(model, folder / "model", beside={FEATURES_FILE: data.features.content})
    return folder / "model"
