# SPDX-License-Identifier: Apache-2.0
"""/embed, /classify and /v1/embeddings over real HTTP: right under load, clear about mistakes."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from http_client import call, metric, open_raw, raw_request, wait_for
from text_models import POSITIONS, WORDS, sentences

from gossamer.io import load, read_beside
from gossamer.running.server import Limits, build_app, make_service, running_server
from gossamer.running.server.app import Service
from gossamer.running.text import Embedder

NAME = "tiny"
CAT = 4 + WORDS.index("cat")


@pytest.fixture(autouse=True)
def _by_rule(monkeypatch):
    monkeypatch.setenv("GOSSAMER_TUNE", "off")


def service_of(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOSSAMER_TUNE", "off")
        return make_service(load(folder), read_beside(folder), NAME)


@pytest.fixture(scope="module")
def service(encoder_folder):
    return service_of(encoder_folder)


@pytest.fixture(scope="module")
def server(service):
    with running_server(build_app(service)) as url:
        yield url


class Gate:
    """Holds the model's calls back until it is opened."""

    def __init__(self, embedder):
        self.open, self.entered = threading.Event(), threading.Event()
        self.sizes, self.batches = [], []
        self._embedder = embedder
        self.tokens = embedder.tokens

    def vectors(self, ids):
        self.entered.set()
        self.sizes.append(len(ids))
        self.batches.append([int(text[1]) for text in ids])
        assert self.open.wait(60)
        return self._embedder.vectors(ids)


def gated(service, **limits):
    gate = Gate(service.embedder)
    bounds = Limits(**limits)
    return gate, running_server(build_app(Service(NAME, gate), bounds), bounds)


def test_embed_is_the_offline_result(server, encoder_folder):
    texts = sentences(9)
    offline = Embedder(load(encoder_folder), read_beside(encoder_folder))(texts)
    document = call(server, "/embed", {"input": texts}).document
    assert document["model"] == NAME
    assert document["tokens"] == sum(len(text.split()) + 2 for text in texts)
    np.testing.assert_allclose(document["vectors"], offline, rtol=1e-4, atol=1e-5)


def test_64_clients_at_once_get_what_they_would_get_alone(server, encoder_folder):
    texts = sentences(64, seed=5)
    offline = Embedder(load(encoder_folder), read_beside(encoder_folder))(texts)
    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(lambda text: call(server, "/embed", {"input": text}), texts))
    assert {reply.status for reply in replies} == {200}
    found = [reply.document["vectors"][0] for reply in replies]
    np.testing.assert_allclose(found, offline, rtol=1e-4, atol=1e-5)


def test_requests_that_wait_share_a_batch(service):
    gate, running = gated(service)
    texts = sentences(33, seed=6)
    with running as url, ThreadPoolExecutor(33) as pool:
        first = pool.submit(call, url, "/embed", {"input": texts[0]})
        assert gate.entered.wait(30)
        others = [pool.submit(call, url, "/embed", {"input": text}) for text in texts[1:]]
        wait_for(lambda: call(url, "/health").document["queue_length"] == 32)
        gate.open.set()
        assert {reply.result(60).status for reply in [first, *others]} == {200}
        assert gate.sizes == [1, 32]
        assert metric(url, "gossamer_batch_texts_sum") == 33
        assert metric(url, "gossamer_batch_texts_count") == 2


def test_a_batch_is_no_larger_than_allowed_and_requests_may_span_several(service):
    gate, running = gated(service, max_batch_tokens=24)
    gate.open.set()
    texts = ["dog " * 6, "cat", "sun " * 10, "moon", "red", "blue"]  # 8 3 12 3 3 3 tokens
    with running as url:
        document = call(url, "/embed", {"input": texts}).document
        assert gate.sizes == [2, 2, 2]
        alone = [call(url, "/embed", {"input": text}).document["vectors"][0] for text in texts]
    np.testing.assert_allclose(document["vectors"], alone, rtol=1e-4, atol=1e-5)


def test_a_long_request_lets_others_in_between(service):
    gate, running = gated(service, max_batch_tokens=12)
    with running as url, ThreadPoolExecutor(2) as pool:
        long = pool.submit(call, url, "/embed", {"input": ["dog"] * 40})  # 4 of 3 tokens in a batch
        assert gate.entered.wait(30)
        short = pool.submit(call, url, "/embed", {"input": ["cat", "sun"]})
        wait_for(lambda: metric(url, "gossamer_queue_length") == 2)
        gate.open.set()
        vectors = long.result(60).document["vectors"]
        assert short.result(60).status == 200
    # The batch that runs, one more of the long request, then the short one.
    assert [CAT in batch for batch in gate.batches] == [False, False, True] + [False] * 8
    np.testing.assert_allclose(vectors, [vectors[0]] * 40, rtol=1e-4, atol=1e-5)


def test_a_full_queue_is_503_and_the_rest_is_answered(service):
    gate, running = gated(service, max_queue=4)
    with running as url, ThreadPoolExecutor(16) as pool:
        first = pool.submit(call, url, "/embed", {"input": "dog"})
        assert gate.entered.wait(30)
        waiting = [pool.submit(call, url, "/embed", {"input": "cat"}) for _ in range(4)]
        wait_for(lambda: metric(url, "gossamer_queue_length") == 4)
        refused = [pool.submit(call, url, "/embed", {"input": "sun"}) for _ in range(8)]
        for reply in refused:
            found = reply.result(60)
            assert found.status == 503
            assert int(found.headers["retry-after"]) >= 1
            assert "4 requests wait already" in found.message
        gate.open.set()
        assert [reply.result(60).status for reply in [first, *waiting]] == [200] * 5
        count = 'gossamer_requests_total{endpoint="/embed",status="503"}'
        wait_for(lambda: metric(url, count) == 8)
        assert metric(url, 'gossamer_request_errors_total{endpoint="/embed"}') == 8


def test_a_client_that_goes_away_leaves_the_queue(service):
    gate, running = gated(service)
    with running as url, ThreadPoolExecutor(2) as pool:
        first = pool.submit(call, url, "/embed", {"input": "dog"})
        assert gate.entered.wait(30)
        leaving = open_raw(url, raw_request("/embed", {"input": "cat"}))
        wait_for(lambda: metric(url, "gossamer_queue_length") == 1)
        leaving.close()
        wait_for(lambda: metric(url, "gossamer_queue_length") == 0)
        gate.open.set()
        assert first.result(60).status == 200
        assert call(url, "/embed", {"input": "sun"}).status == 200
        assert gate.sizes == [1, 1]


def test_an_answer_that_takes_too_long_is_504(service):
    gate, running = gated(service, timeout_seconds=0.5)
    with running as url, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(call, url, "/embed", {"input": "dog"})
        reply = slow.result(60)
        assert reply.status == 504
        assert "within 0.5 s" in reply.message
        gate.open.set()
        assert call(url, "/embed", {"input": "dog"}).status == 200


def test_a_model_that_fails_is_500_and_the_server_goes_on(service, caplog):
    class Moody:
        tokens = service.embedder.tokens
        broken = True

        def vectors(self, ids):
            if self.broken:
                raise ZeroDivisionError("bad day")
            return service.embedder.vectors(ids) * (float("nan") if self.poisoned else 1)

    moody = Moody()
    with running_server(build_app(Service(NAME, moody))) as url:
        reply = call(url, "/embed", {"input": ["dog", "cat"]})
        assert (reply.status, "bad day" in reply.message) == (500, True)
        moody.broken, moody.poisoned = False, True
        reply = call(url, "/embed", {"input": "dog"})
        assert (reply.status, "NaN" in reply.message) == (500, True)
        moody.poisoned = False
        assert call(url, "/embed", {"input": "dog"}).status == 200


def test_embeddings_as_openai_gives_them(server):
    texts = ["the dog", "the cat runs"]
    plain = call(server, "/embed", {"input": texts}).document["vectors"]
    document = call(server, "/v1/embeddings", {"model": NAME, "input": texts}).document
    assert document["object"] == "list"
    assert document["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    assert [item["index"] for item in document["data"]] == [0, 1]
    np.testing.assert_allclose([item["embedding"] for item in document["data"]], plain, atol=1e-6)
    packed = call(server, "/v1/embeddings", {"input": texts, "encoding_format": "base64"}).document
    raw = [np.frombuffer(base64.b64decode(i["embedding"]), "<f4") for i in packed["data"]]
    np.testing.assert_allclose(raw, plain, atol=1e-6)


def test_token_numbers_instead_of_texts(server):
    by_text = call(server, "/embed", {"input": ["the dog", "a"]}).document["vectors"]
    by_ids = call(server, "/embed", {"input": [[2, 4, 6, 3], [2, 5, 3]]}).document["vectors"]
    np.testing.assert_allclose(by_ids, by_text, atol=1e-6)
    one = call(server, "/embed", {"input": [2, 5, 3]}).document["vectors"]
    np.testing.assert_allclose(one, by_text[1:], atol=1e-6)


def test_classify(classifier_folder):
    with running_server(build_app(service_of(classifier_folder))) as url:
        document = call(url, "/classify", {"input": ["the dog", "red moon"]}).document
        assert len(document["results"]) == 2
        for result in document["results"]:
            assert set(result["scores"]) == {"good", "bad", "odd"}
            assert sum(result["scores"].values()) == pytest.approx(1, abs=1e-5)
            assert result["scores"][result["label"]] == max(result["scores"].values())
        assert call(url, "/embed", {"input": "dog"}).status == 200


LONG = " ".join(WORDS * 10)
BAD = [
    ({"input": []}, 422, "input: expected a text or a list of texts that is not empty"),
    ({"input": ""}, 422, "[0] is an empty text"),
    ({"input": ["dog", " "]}, 422, "[1] is an empty text"),
    ({"input": 5}, 422, "input: expected a text"),
    ({"input": None}, 422, "input: expected a text"),
    ({"input": {"text": "dog"}}, 422, "input: expected a text"),
    ({"input": ["dog", 5]}, 422, "[1]: expected a text, got 5"),
    ({"input": [["dog"]]}, 422, "[0]: expected a text or a list of token numbers"),
    ({"input": [[]]}, 422, "[0]: expected a text or a list of token numbers"),
    ({"input": [True]}, 422, "[0]: expected a text or a list"),
    ({"input": [10**30]}, 422, "between 0 and 18"),
    ({"input": [-1]}, 422, "between 0 and 18"),
    ({"input": ["dog", LONG]}, 422, f"input[1]: has 152 tokens; expected at most {POSITIONS}"),
    ({"input": ["dog"] * 2049}, 422, "has 2049 texts; expected at most 2048"),
    ({"input": "\ud800"}, 422, "half of a surrogate pair"),
    ({"input": "dog", "inptu": 1}, 422, "inptu: is no field of this request"),
    ({"input": "dog", "model": 7}, 422, "model"),
    ({"input": "dog", "model": "gpt-4"}, 404, "'gpt-4' is not served; expected 'tiny'"),
    ({}, 422, "input: Field required"),
    ([], 422, "body"),
    ("dog", 422, "body"),
]


@pytest.mark.parametrize(("body", "status", "text"), BAD, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings"])
def test_mistakes_say_what_is_wrong_and_where(server, path, body, status, text):
    reply = call(server, path, body)
    assert reply.status == status, reply.body
    assert text in reply.message
    assert reply.document["error"]["code"] == status


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe{}", 400),
        (b"[" * 100_000, 400),
        (b"", 422),
        (b'{"input": NaN}', 422),
        (b'{"input": "a", "input": "dog"}', 200),
    ],
    ids=lambda value: str(value)[:20],
)
def test_garbage_is_refused(server, raw, status):
    reply = call(server, "/embed", raw=raw)
    assert reply.status == status, reply.body
    assert status == 200 or reply.message


def test_a_form_of_a_web_page_is_refused(server):
    # A page of another site can send text/plain without asking; JSON it cannot.
    reply = call(server, "/embed", raw=b'{"input": "dog"}', content_type="text/plain")
    assert reply.status == 422


def test_unknown_paths_name_the_known_ones(server):
    reply = call(server, "/classify", {"input": "dog"})
    assert reply.status == 404
    assert "/embed" in reply.message
    assert call(server, "/embed").status == 405


def test_a_large_body_is_refused_before_it_is_read(service):
    limits = Limits(max_body_bytes=10_000)
    with running_server(build_app(service, limits), limits) as url:
        client = open_raw(url, raw_request("/embed", {"input": "dog"}, length=10_001))
        assert client.recv(4096).startswith(b"HTTP/1.1 413")
        client.close()
        head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client = open_raw(url, head + b"Transfer-Encoding: chunked\r\n\r\n")
        client.sendall(b"2711\r\n" + b" " * 10_001 + b"\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 413")
        client.close()
        assert call(url, "/embed", {"input": "dog"}).status == 200


def test_half_a_request_times_out_and_disturbs_nobody(service):
    limits = Limits(timeout_seconds=1.0)
    with running_server(build_app(service, limits), limits) as url:
        clients = [open_raw(url, raw_request("/embed", {"input": "dog"}, 500)) for _ in range(8)]
        clients.append(open_raw(url, b"POST /embed HT"))
        clients.append(open_raw(url, b"\x16\x03\x01 this is no HTTP\r\n\r\n"))
        assert call(url, "/embed", {"input": "dog"}).status == 200
        for client in clients[:8]:
            assert client.recv(4096).startswith(b"HTTP/1.1 408")
        assert clients[9].recv(4096).startswith(b"HTTP/1.1 400")
        for client in clients:
            client.close()
        gone = open_raw(url, raw_request("/embed", {"input": "dog"}, length=500))
        gone.close()
        assert call(url, "/embed", {"input": "dog"}).status == 200


def test_metrics_have_names_and_bounded_labels(server):
    before = metric(server, 'gossamer_requests_total{endpoint="other",status="404"}')
    for number in range(3):
        call(server, f"/no/such/path/{number}", {})
    text = call(server, "/metrics").body.decode()
    count = 'gossamer_requests_total{endpoint="other",status="404"}'
    wait_for(lambda: metric(server, count) == before + 3)
    assert "no/such" not in text
    for name in (
        "gossamer_queue_length",
        "gossamer_batch_tokens_bucket",
        'gossamer_request_seconds_bucket{endpoint="/embed",le="0.005"}',
    ):
        assert name in text
