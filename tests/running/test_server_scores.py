# SPDX-License-Identifier: Apache-2.0
"""/v1/score over real HTTP: what the model gives alone, in shared batches, clear about mistakes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import click_models
import numpy as np
import pytest
import torch
from click_models import click_rows
from http_client import call, metric, wait_for

import gossamer
from gossamer.errors import ArtifactError, InputError, KernelError
from gossamer.io import load, read_beside
from gossamer.running.clicks import ClickScorer
from gossamer.running.server import Limits, build_app, make_service, running_server
from gossamer.running.server.app import Service

NAME = "clicks"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return click_models.save_clicks(tmp_path_factory.mktemp("clicks"))


@pytest.fixture(scope="module")
def service(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOSSAMER_TUNE", "off")
        return make_service(load(folder), read_beside(folder), NAME)


@pytest.fixture(scope="module")
def server(service):
    with running_server(build_app(service)) as url:
        yield url


def offline(folder, rows):
    """Row by row through the dense model in float64."""
    scorer = ClickScorer(load(folder), read_beside(folder), NAME)
    model = load(folder).double()
    found = []
    for row in rows:
        numbers, ids, offsets = scorer.features.read_objects([row], "rows").inputs()
        with torch.inference_mode():
            found.append(float(torch.sigmoid(model(numbers.double(), ids, offsets))))
    return found


def test_scores_are_the_offline_result(server, folder):
    rows = click_rows(33)
    reply = call(server, "/v1/score", {"rows": rows})
    assert reply.status == 200
    assert reply.document["model"] == NAME
    np.testing.assert_allclose(reply.document["scores"], offline(folder, rows), rtol=2e-5)
    alone = call(server, "/v1/score", {"rows": rows[:1], "model": NAME}).document["scores"]
    np.testing.assert_allclose(alone, offline(folder, rows[:1]), rtol=2e-5)


def test_32_clients_at_once_get_what_they_would_get_alone(server, folder):
    rows = click_rows(32, seed=5)
    with ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(lambda row: call(server, "/v1/score", {"rows": [row]}), rows))
    assert {reply.status for reply in replies} == {200}
    found = [reply.document["scores"][0] for reply in replies]
    np.testing.assert_allclose(found, offline(folder, rows), rtol=2e-5)


class Gate:
    """Holds the model's calls back until it is opened."""

    def __init__(self, scorer):
        self.open, self.entered = threading.Event(), threading.Event()
        self.sizes = []
        self._scorer = scorer
        self.read = scorer.read

    def chances(self, rows):
        self.entered.set()
        self.sizes.append(len(rows))
        assert self.open.wait(60)
        return self._scorer.chances(rows)


def test_requests_that_wait_share_a_batch(service):
    gate = Gate(service.scorer)
    rows = click_rows(9, seed=6)
    with (
        running_server(build_app(Service(NAME, scorer=gate))) as url,
        ThreadPoolExecutor(9) as pool,
    ):
        first = pool.submit(call, url, "/v1/score", {"rows": rows[:1]})
        assert gate.entered.wait(30)
        others = [pool.submit(call, url, "/v1/score", {"rows": [row] * 2}) for row in rows[1:]]
        wait_for(lambda: call(url, "/health").document["queue_length"] == 8)
        gate.open.set()
        assert {reply.result(60).status for reply in [first, *others]} == {200}
        assert gate.sizes == [1, 16]
        assert metric(url, "gossamer_batch_texts_sum") == 17


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "rows"),
        ({"rows": []}, "rows"),
        ({"rows": {}}, "rows"),
        ({"rows": [1]}, "rows"),
        ({"rows": [{"age": 1, "site": "s0"}]}, r"rows[0] has no 'tags'"),
        ({"rows": [{"age": 1, "site": "s0", "tags": True}]}, "has a bool in 'tags'"),
        ({"rows": [{"age": "old", "site": "s0", "tags": []}]}, "row 0 has 'old' in 'age'"),
        (
            {"rows": [{"age": "nan", "site": "s0", "tags": []}]},
            "rows: row 0: 'age' has 'nan': expected a finite number",
        ),
        ({"rows": [{"age": 1, "site": "never", "tags": []}]}, "row 0: 'site' has an id that"),
        ({"rows": [{"age": 1, "site": "s0", "tags": ["a|b"]}]}, "'|' inside of a text"),
        ({"rows": [{"age": 1, "site": "s0", "tags": []}], "more": 1}, "more"),
    ],
)
def test_mistakes_are_told(server, body, text):
    reply = call(server, "/v1/score", body)
    assert reply.status in (400, 422)
    assert text in reply.message


def test_other_models_and_too_many_rows(server, service):
    rows = click_rows(3)
    assert call(server, "/v1/score", {"rows": rows, "model": "other"}).status == 404
    with running_server(build_app(service, Limits(max_texts=2))) as url:
        reply = call(url, "/v1/score", {"rows": rows})
        assert reply.status in (400, 422)
        assert "rows: has 3 rows; expected at most 2" in reply.message
    assert call(server, "/embed", {"input": "a"}).status == 404


def test_missing_values_follow_the_rules(server, folder):
    rows = [{"age": None, "site": "s1", "tags": None}, {"age": "", "site": "s1", "tags": ""}]
    scores = call(server, "/v1/score", {"rows": rows}).document["scores"]
    assert scores[0] == scores[1]
    np.testing.assert_allclose(scores, offline(folder, rows), rtol=2e-5)


def test_a_scorer_wants_the_features_of_its_model(folder, tmp_path):
    model, beside = load(folder), read_beside(folder)
    with pytest.raises(ArtifactError, match=r"has no features\.arrays"):
        ClickScorer(model, {}, "model")
    model.features_digest[0] ^= 1
    with pytest.raises(InputError, match="from another run"):
        make_service(model, beside, "model")


def test_weights_that_overflow_are_no_chances(folder):
    model, beside = load(folder), read_beside(folder)
    scorer = ClickScorer(model, beside, "model")
    assert scorer.chances([]).shape == (0,)
    with torch.no_grad():
        model.top.head.bias.fill_(torch.nan)
    with pytest.raises(KernelError, match="NaN or infinite"):
        scorer.chances(scorer.read(click_rows(2)))


def test_a_pruned_model_scores_close_to_its_dense_form(folder):
    model, beside = load(folder), read_beside(folder)
    gossamer.sparsify(model, sparsity=0.5)
    rows = click_rows(20)
    dense = ClickScorer(model, beside, "model")
    expected = dense.chances(dense.read(rows))
    fast = ClickScorer(gossamer.compile(model, tokens=(1, 64)), beside, "model")
    torch.testing.assert_close(fast.chances(fast.read(rows)), expected, rtol=1e-5, atol=1e-6)
