# SPDX-License-Identifier: Apache-2.0
"""From a text to arrays: parts, ids and numbers against a slow reading, damage, bad rows."""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from click_logs import ROLES, SITES, plain_roles, roles, rows, write_csv

from gossamer.data.clicks import open_clicks, read_features
from gossamer.data.clicks.keys import text_keys
from gossamer.data.tasks import clicks as clicks_module
from gossamer.data.tasks import clicks_task
from gossamer.errors import ArtifactError, InputError
from gossamer.zoo import DLRM

PARTS = ("train", "validation", "test")


@pytest.fixture
def log(tmp_path):
    return write_csv(tmp_path / "log.csv", rows(200))


def opened(tmp_path, log, columns, **more):
    return open_clicks(tmp_path / "arrays", columns, log, **more)


def everything(data):
    return [data.parts[part].block(0, len(data.parts[part])) for part in PARTS]


def test_parts_are_disjoint_and_whole(tmp_path, log):
    data = opened(tmp_path, log, roles())
    sizes = [len(data.parts[part]) for part in PARTS]
    assert sum(sizes) == 200
    assert all(size > 10 for size in sizes)
    assert sum(int(data.parts[part].labels.sum()) for part in PARTS) == 67


def test_numbers_and_ids_are_those_of_a_slow_reading(tmp_path, log):
    """Split by order, so that the slow reading knows which rows are which."""
    columns = roles(split_by="order")
    data = opened(tmp_path, log, columns)
    table = rows(200)
    train = table[:120]

    def transformed(cell):
        value = float(cell)
        return math.copysign(math.log1p(abs(value)), value)

    statistics = []
    for name in ("age", "price"):
        known = [transformed(row[name]) for row in train if row[name]]
        mean = sum(known) / len(known)
        variance = sum((x - mean) ** 2 for x in known) / len(known)
        statistics.append((mean, math.sqrt(variance)))
    words = sorted(int(key) for key in text_keys(SITES))
    tag_words = sorted(int(key) for key in text_keys(["red", "blue", "green"]))
    found = everything(data)
    place = 0
    for part in found:
        numbers, ids, offsets = part.inputs()
        for row in range(len(part)):
            cells = table[place]
            for column, (name, (mean, deviation)) in enumerate(
                zip(("age", "price"), statistics, strict=True)
            ):
                cell = cells[name]
                expected = (transformed(cell) - mean) / deviation if cell else 0.0
                assert float(numbers[row, column]) == pytest.approx(expected, abs=2e-6)
            assert int(ids[0][offsets[0][row]]) == 1 + words.index(
                int(text_keys([cells["site"]])[0])
            )
            ends = [*offsets[2].tolist(), len(ids[2])]
            tags = ids[2][ends[row] : ends[row + 1]].tolist()
            expected_tags = [t for t in cells["tags"].split("|") if t]
            assert tags == [1 + tag_words.index(int(text_keys([t])[0])) for t in expected_tags]
            assert int(part.labels[row]) == cells["click"]
            place += 1
    assert place == 200
    assert data.features.rows == (5, 50, 4)


def test_vocabularies_and_statistics_are_made_from_the_training_part_alone(tmp_path):
    table = rows(100)
    for row in table[60:]:
        row["site"], row["price"] = "only later", "1e6"
    log = write_csv(tmp_path / "log.csv", table)
    data = opened(tmp_path, log, plain_roles(split_by="order"))
    assert len(data.features.words[0]) == 4
    assert data.features.mean[1] < 5
    later = data.parts["test"].block(0, 20).inputs()[1]
    assert later[:, 0].tolist() == [0] * 20


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_all_endings_give_the_same_arrays(tmp_path, log, ending):
    other = tmp_path / f"other{ending}"
    table = rows(200)
    if ending == ".jsonl":
        lines = [{**row, "tags": row["tags"].split("|") if row["tags"] else None} for row in table]
        other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        sign = "," if ending == ".csv" else "\t"
        lines = [sign.join(table[0])] + [sign.join(map(str, row.values())) for row in table]
        other.write_text("\r\n".join(lines) + "\r\n\r\n")
    first = everything(opened(tmp_path, log, roles()))
    second = everything(open_clicks(tmp_path / "others", roles(), other))
    for one, two in zip(first, second, strict=True):
        for name in ("numbers", "ids", "counts", "labels"):
            assert np.array_equal(getattr(one, name), getattr(two, name))


def test_the_second_opening_reads_arrays_and_damage_is_made_anew(tmp_path, log):
    first = opened(tmp_path, log, roles())
    stamp = (tmp_path / "arrays" / "cache.json").stat().st_mtime_ns
    again = opened(tmp_path, log, roles())
    assert again.digest == first.digest
    assert (tmp_path / "arrays" / "cache.json").stat().st_mtime_ns == stamp
    assert not (tmp_path / "arrays" / "raw").exists()
    path = tmp_path / "arrays" / "train.ids"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    assert opened(tmp_path, log, roles()).digest == first.digest
    (tmp_path / "arrays" / "cache.json").write_text("[]")
    assert opened(tmp_path, log, roles()).digest == first.digest


def test_other_data_and_other_roles_have_other_digests(tmp_path, log):
    first = opened(tmp_path, log, roles()).digest
    assert opened(tmp_path, log, roles(missing="zero")).digest != first
    text = log.read_text()
    log.write_text(text)  # another time, the same bytes
    assert opened(tmp_path, log, roles()).digest == first
    log.write_text(text.replace("news", "olds"))
    assert opened(tmp_path, log, roles()).digest != first


def test_a_split_by_time_goes_by_the_column_and_keeps_moments_together(tmp_path):
    table = rows(100)
    for i, row in enumerate(table):
        row["when"] = f"2026-01-{1 + (i * 7 % 10):02d}"
    log = write_csv(tmp_path / "log.csv", table)
    data = opened(tmp_path, log, roles(split_by="time", time="when"))
    assert [len(data.parts[part]) for part in PARTS] == [60, 20, 20]
    # Rows of the last two days are the test part.
    last = [row["click"] for row in table if row["when"] >= "2026-01-09"]
    assert sorted(data.parts["test"].labels.tolist()) == sorted(last)


def test_equal_rows_are_in_one_part(tmp_path):
    table = rows(20) * 10
    data = opened(tmp_path, write_csv(tmp_path / "log.csv", table), roles())
    for part in everything(data):
        assert len(part) % 10 == 0


def test_an_evaluation_file_is_the_test_part(tmp_path, log):
    other = write_csv(tmp_path / "eval.csv", rows(7))
    data = opened(tmp_path, log, roles(), evaluation=other)
    assert len(data.parts["test"]) == 7
    assert len(data.parts["train"]) + len(data.parts["validation"]) == 200


def test_rows_with_missing_columns_are_counted_and_named(tmp_path, log):
    lines = log.read_text().splitlines()
    lines[5] = "1,2,3"
    lines[9] = "2" + lines[9][1:]
    log.write_text("\n".join(lines) + "\n")
    data = opened(tmp_path, log, roles(bad_rows=0.02))
    assert sum(len(data.parts[part]) for part in PARTS) == 198
    assert len(data.notes) == 1
    assert "2 rows were left out" in data.notes[0]
    assert "line 6 has 3 of 7 columns" in data.notes[0]
    assert "line 10 has '2' in 'click'; expected 0 or 1" in data.notes[0]
    with pytest.raises(InputError, match=r"2 rows were left out.*bad_rows allows \(0.001"):
        opened(tmp_path, log, roles())
    assert opened(tmp_path, log, roles(bad_rows=0.02)).digest == data.digest


@pytest.mark.parametrize(
    ("cell", "changes", "text"),
    [
        ("nan", {}, r"line 3: 'age' has 'nan': expected a finite number"),
        ("inf", {}, r"line 3: 'age' has 'inf'"),
        ("-3", {"negative": "error"}, r"line 3: 'age' has '-3': is negative"),
        ("", {"missing": "error"}, r"'age' has '': is missing"),
        ("many", {}, r"line 3 has 'many' in 'age'; expected a number"),
    ],
)
def test_numbers_that_the_rules_refuse(tmp_path, cell, changes, text):
    table = rows(50)
    table[0]["age"] = "1"
    table[1]["age"] = cell
    log = write_csv(tmp_path / "log.csv", table)
    with pytest.raises(InputError, match=text):
        opened(tmp_path, log, roles(**changes))
    assert not (tmp_path / "arrays").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"negative": "sign", "transform": "none"}, -3.0),
        ({"negative": "zero", "transform": "none"}, 0.0),
        ({"negative": "sign"}, -math.log(4)),
    ],
)
def test_rules_for_negative_numbers(tmp_path, changes, expected):
    table = rows(40)
    table[0]["age"], table[1]["age"] = "-3", "nan"
    log = write_csv(tmp_path / "log.csv", table)
    data = opened(tmp_path, log, plain_roles(split_by="order", nan="missing", **changes))
    part = data.parts["train"].block(0, 2)
    found = part.numbers[0, 0] * data.features.deviation[0] + data.features.mean[0]
    assert float(found) == pytest.approx(expected, abs=1e-5)
    assert part.numbers[1, 0] == 0


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"ids": "index", "size": 4, "unknown": "hash"}, [0, 3, 0, 2**64 % 4 + 3, 1]),
        ({"ids": "index", "size": 4, "unknown": "shared"}, [0, 3, 4, 4, 4]),
    ],
)
def test_ids_out_of_range_follow_the_rule(tmp_path, rules, expected):
    table = [{"click": i % 2, "ad": cell} for i, cell in enumerate(["0", "3", "4", "-1", "5"])]
    log = write_csv(tmp_path / "log.csv", table)
    category = {"name": "ad", "columns": ["ad"], **rules}
    columns = roles(numbers=[], categories=[category], validation=0.0, test=0.0)
    data = opened(tmp_path, log, columns)
    assert data.parts["train"].block(0, 5).ids.tolist() == expected
    with pytest.raises(InputError, match=r"train row 3: 'ad' has an id that the table does not"):
        opened(
            tmp_path,
            log,
            roles(
                numbers=[], categories=[{**category, "unknown": "error"}], test=0.0, validation=0.0
            ),
        )


def test_floor_and_hashed_strangers(tmp_path):
    texts = ["often"] * 5 + ["twice"] * 2 + ["once"]
    table = [{"click": i % 2, "ad": text} for i, text in enumerate(texts)]
    log = write_csv(tmp_path / "log.csv", table)
    category = {"name": "ad", "columns": ["ad"], "ids": "vocabulary", "floor": 2}
    settings = {"numbers": [], "validation": 0.0, "test": 0.0}
    shared = opened(tmp_path, log, roles(categories=[category], **settings))
    assert shared.features.rows == (3,)
    assert shared.parts["train"].block(0, 8).ids[-1] == 0
    hashed = roles(categories=[{**category, "unknown": "hash", "size": 10}], **settings)
    data = opened(tmp_path, log, hashed)
    assert data.features.rows == (12,)
    assert data.parts["train"].block(0, 8).ids[-1] == 2 + int(text_keys(["once"])[0]) % 10


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"categories": [{"name": "a", "columns": ["a"], "size": 2**31}]},
            r"2\^31 - 1.*2147483648",
        ),
        (
            {"categories": [{"name": "a", "columns": ["a"], "ids": "magic"}]},
            "hash, vocabulary, index",
        ),
        ({"categories": [{"name": "a", "columns": []}]}, "has no column"),
        ({"categories": ROLES["categories"][:1] * 2}, "twice"),
        ({"categories": [], "numbers": []}, "nothing to learn from"),
        ({"numbers": ["click"]}, "give it away"),
        ({"split_by": "time"}, "needs the name of a column"),
        ({"validation": 0.6, "test": 0.5}, "leave nothing"),
        ({"bad_rows": 2.0}, r"\[0, 1\)"),
        ({"surprise": 1}, "surprise"),
        (
            {
                "categories": [
                    {
                        "name": "a",
                        "columns": ["a"],
                        "ids": "vocabulary",
                        "floor": 2,
                        "unknown": "error",
                    }
                ]
            },
            "floor 2",
        ),
        ({"categories": [{"name": "a", "columns": ["a", "b"], "separator": "|"}]}, "crossed"),
    ],
)
def test_roles_that_make_no_sense_are_refused(changes, text):
    with pytest.raises(InputError, match=text):
        roles(**changes)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "has no rows"),
        (b"click,age,price\n", "has no column 'site', 'day', 'tags'"),
        (b"\xff\xfe", "not UTF-8"),
        (b'click,age,price,site,day,tags\n1,2,3,"a', "is no table"),
        (b"x" * (1 << 20), "longer than"),
    ],
)
def test_files_that_are_no_logs(tmp_path, content, text):
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=text):
        opened(tmp_path, path, roles())
    with pytest.raises(InputError, match="ends with"):
        opened(tmp_path, path.rename(tmp_path / "log.parquet"), roles())


def test_features_come_back_from_their_bytes_and_damage_is_refused(tmp_path, log):
    features = opened(tmp_path, log, roles()).features
    again = read_features(features.content, "model")
    assert again.digest == features.digest
    assert again.columns == features.columns
    with pytest.raises(ArtifactError, match=r"has no features\.arrays"):
        read_features(None, "model")
    for damaged in (features.content[:-1], b"", features.content + b"\0", b"{}" * 40):
        with pytest.raises(ArtifactError):
            read_features(damaged, "model")
    # Keys that are not in rising order: a lookup would miss what is there.
    keys = features.words[0]
    place = features.content.index(keys.tobytes())
    swapped = (
        features.content[:place] + keys[::-1].tobytes() + features.content[place + keys.nbytes :]
    )
    with pytest.raises(ArtifactError, match="rising keys"):
        read_features(swapped, "model")


def test_a_model_of_other_vocabularies_is_refused(tmp_path, log):
    from gossamer.zoo import DLRM

    features = opened(tmp_path, log, roles()).features
    model = DLRM(2, features.rows)
    features.check_model(model, "log")
    features.mark(model, "log")
    assert bytes(model.features_digest.tolist()) == features.digest
    others = opened(tmp_path, log, roles(missing="zero")).features
    assert others.rows == features.rows
    with pytest.raises(InputError, match="from another run"):
        others.check_model(model, "log")
    with pytest.raises(InputError, match="from another run"):
        features.check_model(DLRM(2, (5, 50, 9)), "log")
    assert torch.equal(
        model.features_digest, torch.tensor(list(features.digest), dtype=torch.uint8)
    )


def test_processes_that_begin_together_read_a_log_once(tmp_path, log):
    """Each waits for the one that reads; a lock is of an open file, so that threads will do."""

    def task(_):
        columns = {**ROLES, "split_by": "hash"}
        return clicks_task(str(log), 8, 0, columns=columns, window=64, folder=tmp_path / "data")

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(task, range(4)))
    assert len({one.digest for one in found}) == 1
    before = (tmp_path / "data" / "arrays").stat().st_ino
    assert task(4).digest == found[0].digest
    assert (tmp_path / "data" / "arrays").stat().st_ino == before


def test_an_evaluation_in_parts_has_the_bits_of_one(tmp_path, log, monkeypatch):
    monkeypatch.setattr(clicks_module, "_EVAL_BATCH", 7)
    columns = {**ROLES, "split_by": "hash"}
    task = clicks_task(str(log), 8, 0, columns=columns, window=64, folder=tmp_path / "data")
    torch.manual_seed(0)
    model = DLRM(task.sizes["numbers"], task.sizes["rows"], width=4).eval()
    evaluate = task.evaluate
    with torch.no_grad():
        whole = evaluate.part(model, 0, 1)
        assert len(whole) == sum(evaluate.sizes) > 14
        for count in (1, 2, 3, len(evaluate.sizes) + 2):
            parts = [evaluate.part(model, index, count) for index in range(count)]
            assert torch.equal(sum(parts), whole)
        assert evaluate(model) == evaluate.conclude(whole)
