# SPDX-License-Identifier: Apache-2.0
"""Click logs on the command line: train, score, go on to the same bits, and what is refused."""

import json
import shutil

import pytest
import torch

import gossamer
from gossamer.data.clicks import read_features
from gossamer.io import read_beside
from gossamer.nn import quantize_tables
from gossamer.training.loop.evaluation import BestState
from gossamer.training.optim import SideBySide
from gossamer.training.optim.gradients import gradient_numbers
from gossamer.training.optim.tables import TableAdagrad
from gossamer.training.run_files import read_metrics
from gossamer.zoo import DLRM
from gossamer.zoo.problems import click_problem, write_criteo

RECIPE = """\
gossamer: 1
stages:
  - train:
      task: clicks
      model: {{name: dlrm, width: 4, bottom: [8], top: [8]}}
      data: {{clicks: {clicks}}}
      steps: 24
      batch: 32
      optimizer: {{lr: 0.01, tables: {{name: adagrad, lr: 0.1}}}}
      checkpoint: {{every: 6}}
      evaluation: {{every: 6, keep: best}}
      log_every: 6
"""
CRITEO = "{format: criteo, ids: vocabulary, floor: 2, window: 100}"
TABLE = "{label: click, numbers: [n], categories: [a, b, a x b], ids: vocabulary}"
# Some scales of 4 bits are found anew between checkpoints; those of 8 bits are older.
QUANTISED = (
    ("{bits: 4, period: 5}", "adagrad"),
    ("{bits: 2, granularity: row}", "sgd"),
    ("{bits: 8}", "adam"),
    ("{bits: 32}", "adagrad"),
    ("{bits: 8, granularity: row, shadow: false}", "adagrad"),
    ("{bits: 4, granularity: row, shadow: false}", "sgd"),
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.tsv"
    generator = torch.Generator().manual_seed(0)
    write_criteo(click_problem(generator, num_rows=600, rows=(20,) * 26), path)
    return path


def write_recipe(tmp_path, clicks=CRITEO, **changes):
    text = RECIPE.format(clicks=clicks)
    for before, after in changes.items():
        text = text.replace(before, after)
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def quantised(tables):
    """Changes of the recipe."""
    if tables is None:
        return {}
    how, name = tables
    return {
        "steps: 24": f"steps: 24\n      quantize_tables: {how}",
        "name: adagrad": f"name: {name}",
    }


def write_table(path, count=200, label=lambda i: i % 2, cell=lambda i: f"a{i % 7}"):
    lines = ["click,n,a,b"]
    lines += [f"{label(i)},{i % 13},{cell(i)},b{i % 3}" for i in range(count)]
    path.write_text("\n".join(lines) + "\n")
    return path


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_train_and_score(gossamer_cli, tmp_path, log):
    out = tmp_path / "out"
    ran = gossamer_cli("train", write_recipe(tmp_path), "--data", log, "-o", out, "--json")
    assert ran.code == 0, ran.err
    quality = ran.document["quality"]
    names = ["auc", "eval_loss", "normalised_entropy", "calibration"]
    assert list(quality)[:4] == names
    assert {"test_auc", "test_log_loss", "test_calibration"} <= set(quality)
    assert quality["auc"] > 0.5
    records = read_metrics(tmp_path / "out.run" / "metrics.jsonl")
    evaluated = [record for record in records if record["kind"] == "evaluation"]
    # Chosen on validation, told of test.
    assert quality["eval_loss"] == min(record["eval_loss"] for record in evaluated)
    assert [record["test_auc"] for record in records if record["kind"] == "report"]
    assert "test\\_auc" in (out / "card.md").read_text()

    target = tmp_path / "chances.txt"
    scored = gossamer_cli("run", "score", out, log, "-o", target, "--json")
    assert scored.code == 0, scored.err
    assert scored.document["rows"] == 600
    chances = torch.tensor([*map(float, target.read_text().split())])
    # The same rows through model and features, without the command.
    features = read_features(read_beside(out)["features.arrays"], "out")
    model = gossamer.load(out)
    (rows,) = features.read_file(log)
    with torch.inference_mode():
        torch.testing.assert_close(chances, torch.sigmoid(model(*rows.inputs())))
    # Without labels the rows are the same.
    bare = tmp_path / "bare.tsv"
    bare.write_text("".join(line.partition("\t")[2] for line in log.read_text().splitlines(True)))
    again = gossamer_cli("run", "score", out, bare)
    assert again.code == 0, again.err
    assert again.out == target.read_text()


@pytest.mark.parametrize("tables", [None, *QUANTISED])
def test_a_stopped_run_goes_on_to_the_same_bits(gossamer_cli, tmp_path, log, tables):
    recipe = write_recipe(tmp_path, **quantised(tables))
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for out in (whole, stopped):
        assert gossamer_cli("train", recipe, "--data", log, "-o", out, "-q").code == 0
    assert files_of(whole).keys() == files_of(stopped).keys()
    # As if it had been killed after step 18; once more with the arrays gone, too.
    for lost in ((), ("arrays",)):
        shutil.rmtree(stopped)
        run = tmp_path / "stopped.run"
        shutil.rmtree(run / "checkpoints" / "step_00000024")
        for name in lost:
            shutil.rmtree(run / "data" / name)
        ran = gossamer_cli("train", recipe, "--data", log, "-o", stopped, "-q", "--resume")
        assert ran.code == 0, ran.err
        expected = files_of(whole)
        found = files_of(stopped)
        # The card names the folder.
        for name in ("card.md",):
            expected.pop(name)
            found.pop(name)
        assert found == expected


def test_tables_in_4_bits_from_recipe_to_scores(gossamer_cli, tmp_path, log):
    recipe, out = write_recipe(tmp_path, **quantised(QUANTISED[0])), tmp_path / "out"
    recipe.write_text(recipe.read_text().replace("steps: 24", "steps: 120"))
    result = gossamer.train(str(recipe), log, out=out)
    assert result.quality["auc"] > 0.6
    model = gossamer.load(out)
    assert {(table.form, table.bits, table.quantising.period) for table in model.tables} == {
        ("trained", 4, 5)
    }
    ran = gossamer_cli("run", "score", out, log, "--json")
    assert ran.code == 0, ran.err
    features = read_features(read_beside(out)["features.arrays"], "out")
    (rows,) = features.read_file(log)
    with torch.inference_mode():
        expected = model(*rows.inputs())
        torch.testing.assert_close(
            torch.tensor(ran.document["chances"]), torch.sigmoid(expected), rtol=1e-5, atol=1e-6
        )
        # An ordinary model with the rounded rows.
        oracle = DLRM(**model.zoo_args()).double()
        for table, own in zip(oracle.tables, model.tables, strict=True):
            table.weight.copy_(own.dense_weight())
            assert len(own.dense_weight().unique()) <= 15
        oracle.bottom.load_state_dict(model.bottom.state_dict())
        oracle.top.load_state_dict(model.top.state_dict())
        numbers, *ids = rows.inputs()
        torch.testing.assert_close(
            expected.double(), oracle(numbers.double(), *ids), rtol=1e-5, atol=1e-5
        )
        fast = gossamer.compile(model)
        for packed, own in zip(fast.tables, model.tables, strict=True):
            assert packed.form == "packed"
            assert 8 * (packed.nbytes - 4) == own.weight.nbytes
            ids = torch.arange(own.num_embeddings).unsqueeze(1)
            assert torch.equal(packed(ids), own(ids))
        torch.testing.assert_close(fast(*rows.inputs()), expected)
    beside = read_beside(out)
    gossamer.save(fast, tmp_path / "packed", beside=beside)
    again = gossamer_cli("run", "score", tmp_path / "packed", log, "--json")
    assert again.code == 0, again.err
    assert again.document["chances"] == pytest.approx(ran.document["chances"], abs=1e-5)


def test_the_best_state_has_the_scales_of_its_rows():
    model = DLRM(1, (9,), width=4)
    quantize_tables(model, bits=2)
    best = BestState(model.train(), "loss")
    ids = torch.arange(9).unsqueeze(1)
    expected = model.tables[0](ids).detach()
    best.look(0, {"loss": 1.0})
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.tables[0].weight.mul_(5)
    model.tables[0](ids)
    assert model.tables[0].top > kept["tables.0.top"]
    best.restore()
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.eval().tables[0](ids), expected)


def test_the_best_state_has_codes_that_are_trained_in_place():
    model = DLRM(1, (9,), width=4)
    quantize_tables(model, bits=8, granularity="row", shadow=False)
    best = BestState(model.train(), "loss")
    best.look(0, {"loss": 1.0})
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = TableAdagrad([model.tables[0].weight], lr=0.5)
    model.tables[0](torch.arange(9).unsqueeze(1)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.tables[0].weight, kept["tables.0.weight"])
    best.restore()
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_gradients_of_codes_are_clipped_and_dropped():
    """As those of float32 rows are: their norm counts, and a skipped step leaves nothing."""
    model = DLRM(1, (9,), width=4)
    quantize_tables(model, bits=8, granularity="row", shadow=False)
    codes = model.tables[0].weight
    assert gradient_numbers(codes) is None
    for _ in range(2):
        model.tables[0](torch.tensor([[1, 1, 3]])).sum().backward()
    numbers = gradient_numbers(codes)
    assert torch.equal(numbers, torch.tensor([[4.0] * 4, [2.0] * 4]))
    numbers.mul_(0)
    before, rest = codes.clone(), [p for p in model.parameters() if p.requires_grad]
    both = SideBySide([torch.optim.SGD(rest, 0.1), TableAdagrad([codes], lr=0.5)])
    both.step()
    assert torch.equal(codes, before)
    model.tables[0](torch.tensor([[1]])).sum().backward()
    both.zero_grad()
    assert gradient_numbers(codes) is None


def test_codes_without_a_shadow_are_refused_where_they_do_not_go(gossamer_cli, tmp_path, log):
    shadow = "quantize_tables: {{bits: {bits}, granularity: {by}, shadow: false}}"
    for how, more, words in (
        ({"bits": 8, "by": "table"}, {}, "bits: 8 or 4, granularity: row"),
        ({"bits": 2, "by": "row"}, {}, "bits: 8 or 4, granularity: row"),
        ({"bits": 8, "by": "row"}, {"name: adagrad": "name: adam"}, "adam needs float32 rows"),
        (
            {"bits": 8, "by": "row"},
            {"batch: 32": "batch: 32\n      mesh: {data: 2}"},
            "one process",
        ),
    ):
        changed = {"steps: 24": f"steps: 24\n      {shadow.format(**how)}", **more}
        recipe = write_recipe(tmp_path, **changed)
        ran = gossamer_cli("train", recipe, "--data", log, "-o", tmp_path / "no")
        assert ran.code == 2
        assert "quantize_tables.shadow" in ran.err
        assert words in ran.err


def test_tables_in_few_bits_are_trained_further(gossamer_cli, tmp_path, log):
    recipe, out = write_recipe(tmp_path, **quantised(QUANTISED[0])), tmp_path / "out"
    assert gossamer_cli("train", recipe, "--data", log, "-o", out, "-q").code == 0
    words = ["--data", log, "--model", out, "-q", "-o"]
    other = write_recipe(tmp_path, **quantised(QUANTISED[1]))
    ran = gossamer_cli("train", other, *words, tmp_path / "no")
    assert ran.code == 2
    assert (
        "trained table with 4 bits and a scale by table; expected a trained one with 2" in ran.err
    )
    recipe = write_recipe(tmp_path, **quantised(QUANTISED[0]))
    ran = gossamer_cli("train", recipe, *words, tmp_path / "more")
    assert ran.code == 0, ran.err
    assert gossamer.load(tmp_path / "more").tables[0].bits == 4


def test_other_data_are_another_run(gossamer_cli, tmp_path, log):
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    assert gossamer_cli("train", recipe, "--data", log, "-o", out, "-q").code == 0
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-1]))
    ran = gossamer_cli("train", recipe, "--data", log, "-o", out, "-q", "--resume")
    assert ran.code == 2
    assert "belongs to another run" in ran.err


def test_a_model_is_trained_further_with_its_own_vocabulary(gossamer_cli, tmp_path):
    first = write_table(tmp_path / "first.csv")
    later = write_table(tmp_path / "later.csv", cell=lambda i: f"a{i % 9}")
    recipe, out = write_recipe(tmp_path, TABLE), tmp_path / "out"
    assert gossamer_cli("train", recipe, "--data", first, "-o", out, "-q").code == 0
    words = ["train", recipe, "--data", later, "--model", out, "-q"]
    ran = gossamer_cli(*words, "-o", tmp_path / "more")
    assert ran.code == 0, ran.err
    same = "features.arrays"
    assert (out / same).read_bytes() == (tmp_path / "more" / same).read_bytes()
    other = write_recipe(tmp_path, TABLE.replace("vocabulary", "hash, size: 9"))
    ran = gossamer_cli("train", other, *words[2:], "-o", tmp_path / "no")
    assert ran.code == 2
    assert "not those that the model was trained with" in ran.err


def test_a_vocabulary_from_another_run_is_refused(gossamer_cli, tmp_path):
    recipe = write_recipe(tmp_path, TABLE)
    rows = write_table(tmp_path / "rows.csv")
    other = write_table(tmp_path / "other.csv", cell=lambda i: f"z{i % 7}")
    for name, data in (("one", rows), ("two", other)):
        assert gossamer_cli("train", recipe, "--data", data, "-o", tmp_path / name, "-q").code == 0
    one, two = gossamer.load(tmp_path / "one"), read_beside(tmp_path / "two")
    assert one.rows == gossamer.load(tmp_path / "two").rows
    gossamer.save(one, tmp_path / "mixed", beside=two)
    ran = gossamer_cli("run", "score", tmp_path / "mixed", rows, "-o", tmp_path / "chances.txt")
    assert ran.code == 2
    assert "from another run" in ran.err
    assert not (tmp_path / "chances.txt").exists()
    shutil.copy(tmp_path / "two" / "features.arrays", tmp_path / "one" / "features.arrays")
    ran = gossamer_cli("run", "score", tmp_path / "one", rows)
    assert ran.code == 3
    assert "features.arrays: was damaged or replaced" in ran.err


def test_one_class_in_a_part_is_said(gossamer_cli, tmp_path):
    clicks = TABLE.replace("ids: vocabulary", "split: {by: order}")
    log = write_table(tmp_path / "log.csv", label=lambda i: int(i % 2 and i < 160))
    ran = gossamer_cli(
        "train", write_recipe(tmp_path, clicks), "--data", log, "-o", tmp_path / "out", "--json"
    )
    assert ran.code == 0, ran.err
    assert "AUC is undefined on the validation part: all of its 20 labels are 0" in ran.err
    assert list(ran.document["quality"]) == ["eval_loss", "test_log_loss"]
    assert "AUC is undefined on the test part" in (tmp_path / "out" / "card.md").read_text()


def test_rows_left_out_are_told(gossamer_cli, tmp_path):
    log = write_table(tmp_path / "log.csv")
    log.write_text(log.read_text() + "1,2\n")
    clicks = TABLE[:-1] + ", bad_rows: 0.01}"
    ran = gossamer_cli(
        "train", write_recipe(tmp_path, clicks), "--data", log, "-o", tmp_path / "out"
    )
    assert ran.code == 0
    assert "1 rows were left out: line 202 has 2 of 4 columns" in ran.err
    assert "line 202" in (tmp_path / "out" / "card.md").read_text()


def test_scoring_leaves_no_row_out(gossamer_cli, tmp_path):
    log = write_table(tmp_path / "log.csv")
    clicks = TABLE[:-1] + ", unknown: error}"
    out = tmp_path / "out"
    recipe = write_recipe(tmp_path, clicks.replace("a x b", "{column: a x b, unknown: shared}"))
    assert gossamer_cli("train", recipe, "--data", log, "-o", out, "-q").code == 0
    target = tmp_path / "chances.txt"
    for line, text in (
        ("1,2\n", "line 202 has 2 of 4 columns. No row may be left out"),
        ("1,x,a0,b0\n", "line 202 has 'x' in 'n'; expected a number"),
        ("1,2,never,b0\n", "line 202: 'a' has an id that the training part does not have"),
        ("1,nan,a0,b0\n", "line 202: 'n' has 'nan': expected a finite number"),
    ):
        bad = tmp_path / "bad.csv"
        bad.write_text(log.read_text() + line)
        ran = gossamer_cli("run", "score", out, bad, "-o", target)
        assert ran.code == 2
        assert text in ran.err
        assert not target.exists()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"n": 3, "a": "a1", "b": "b0"}) + "\n")
    ran = gossamer_cli("run", "score", out, rows, "--json")
    assert len(ran.document["chances"]) == 1


def test_dry_run_counts_touched_rows_alone_and_writes_nothing(gossamer_cli, tmp_path, log):
    recipe = write_recipe(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    ran = gossamer_cli(
        "train", recipe, "--data", log, "-o", tmp_path / "out", "--dry-run", "--json"
    )
    assert ran.code == 0, ran.err
    assert (
        sorted(tmp_path.rglob("*")) == [*before, tmp_path / "cache"]
        or sorted(tmp_path.rglob("*")) == before
    )
    document = ran.document
    tables = document["parameters"] - document["bytes_by_kind"]["gradients"] // 4
    assert tables > 1000
    # AdamW holds two moments of the MLPs, Adagrad one of the tables.
    assert document["bytes_by_kind"]["moments"] == 4 * (
        2 * (document["parameters"] - tables) + tables
    )


def test_dry_run_counts_one_moment_for_a_row_in_few_bits(gossamer_cli, tmp_path, log):
    recipe = write_recipe(tmp_path, **quantised(QUANTISED[0]))
    words = ["train", recipe, "--data", log, "-o", tmp_path / "out", "--dry-run", "--json"]
    ran = gossamer_cli(*words)
    assert ran.code == 0, ran.err
    kinds, parameters = ran.document["bytes_by_kind"], ran.document["parameters"]
    mlps = kinds["gradients"] // 4
    # Rows are 4 numbers wide.
    assert kinds["moments"] == 4 * (2 * mlps + (parameters - mlps) // 4)


@pytest.mark.parametrize(
    ("clicks", "changes", "text"),
    [
        ("{format: criteo, size: 2147483648}", {}, "size"),
        ("{format: criteo, numbers: [a]}", {}, "format criteo has its own columns"),
        ("{}", {}, "name categories, numbers, or both"),
        ("{format: criteo, time: when}", {}, "split: {by: time}"),
        ("null", {}, "data.clicks: is missing"),
        (CRITEO, {"task: clicks": "task: text"}, "belongs to task clicks"),
        (CRITEO, {"lr: 0.1": "lr: 0.1, weight_decay: 0.1"}, "decay of tables is refused"),
        (CRITEO, {"{lr: 0.01,": "{name: lamb,"}, "must be adamw or sgd"),
        (CRITEO, {"batch: 32": "mesh: {shard: 2}"}, "trained by replicas; use data alone"),
        (
            CRITEO,
            {"batch: 32": "mesh: {data: 2, tables: {shard: row}}"},
            "no rank holds the whole best state",
        ),
        (
            CRITEO,
            {
                "batch: 32": "mesh: {data: 2, tables: {shard: auto}}",
                "steps: 24": "steps: 24\n      quantize_tables: {bits: 4}",
                ", keep: best": "",
            },
            "whole on every rank",
        ),
        (CRITEO, {"batch: 32": "quantize_tables: {bits: 3}"}, "quantize_tables.bits"),
        (CRITEO, {"batch: 32": "quantize_tables: {period: 0}"}, "quantize_tables.period"),
        (
            CRITEO,
            {"batch: 32": "quantize_tables: {}", ", tables: {name: adagrad, lr: 0.1}": ""},
            "give them an optimizer of rows",
        ),
        (
            CRITEO,
            {"batch: 32": "quantize_tables: {}", "task: clicks": "task: text"},
            "quantize_tables: belongs to task clicks",
        ),
        (CRITEO, {"width: 4": "width: 4, layers: 2"}, "dlrm has none"),
        (CRITEO, {"batch: 32": "compaction: kernel"}, "needs compaction: off"),
    ],
)
def test_recipes_that_cannot_be(gossamer_cli, tmp_path, log, clicks, changes, text):
    recipe = write_recipe(tmp_path, clicks, **changes)
    ran = gossamer_cli("train", recipe, "--data", log, "-o", tmp_path / "out")
    assert ran.code == 2
    assert text in ran.err


def test_tables_that_no_machine_holds(gossamer_cli, tmp_path, log):
    """2^31 - 1 rows of 65,536 numbers for each of 26 categories: 15 petabytes."""
    clicks = "{format: criteo, size: 2147483647}"
    recipe = write_recipe(tmp_path, clicks, **{"width: 4": "width: 65536"})
    for extra in ((), ("--dry-run",)):
        ran = gossamer_cli("train", recipe, "--data", log, "-o", tmp_path / "out", *extra)
        assert ran.code != 0
        assert "26 tables with 55,834,574,822 rows of 65536 numbers take" in ran.err
        assert "Use a smaller data.clicks.size" in ran.err
    assert not (tmp_path / "out").exists()


def test_files_that_cannot_be(gossamer_cli, tmp_path, log):
    recipe = write_recipe(tmp_path)
    for data, text in (
        (tmp_path / "no.tsv", "there is no such file"),
        (tmp_path, "is a folder"),
        ("zoo:text", "there are no such generated data"),
        (log.rename(tmp_path / "log.parquet"), "task clicks expected a .tsv"),
    ):
        ran = gossamer_cli("train", recipe, "--data", data, "-o", tmp_path / "out")
        assert ran.code == 2
        assert text in ran.err


def test_a_model_without_features_does_not_score(gossamer_cli, tmp_path, log):
    ran = gossamer_cli("run", "score", "zoo:mlp", log)
    assert ran.code == 3
    assert "has no features.arrays" in ran.err
