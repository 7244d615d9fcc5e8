# SPDX-License-Identifier: Apache-2.0
"""Small click logs for tests."""

import csv

from gossamer.data.clicks import columns_of

ROLES = {
    "format": "table",
    "label": "click",
    "numbers": ["age", "price"],
    "categories": [
        {"name": "site", "columns": ["site"], "ids": "vocabulary"},
        {"name": "site x day", "columns": ["site", "day"], "size": 50},
        {"name": "tags", "columns": ["tags"], "ids": "vocabulary", "separator": "|"},
    ],
    "validation": 0.2,
    "test": 0.2,
}
SITES = ["news", "shop", "mail", "a rather long name of a site that nobody will ever visit again"]
TAGS = ["", "red", "red|blue", "blue|green|red"]


def roles(**changes):
    return columns_of({**ROLES, **changes})


def plain_roles(**changes):
    """Without tags: one id of each category."""
    return roles(categories=ROLES["categories"][:2], **changes)


def rows(count):
    return [
        {
            "click": int(i % 3 == 0),
            "age": "" if i % 7 == 0 else str(i % 50),
            "price": str((i * 37 % 101) / 4 - 3),
            "site": SITES[i % 4],
            "day": f"d{i % 5}",
            "tags": TAGS[i % 4],
            "when": str(1000 + i),
        }
        for i in range(count)
    ]


def write_csv(path, table):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows(table)
    return path
