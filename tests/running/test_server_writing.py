# SPDX-License-Identifier: Apache-2.0
"""/v1/completions and /v1/chat/completions over real HTTP: whole, streamed, slow and broken."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from http_client import call, metric, open_raw, raw_request, wait_for

from gossamer.io import load, read_beside
from gossamer.running.decoder import GenerationOptions
from gossamer.running.server import Limits, build_app, make_service, running_server

NAME = "writer"
GREEDY = {"prompt": "the dog", "max_tokens": 24, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def service(decoder_folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOSSAMER_TUNE", "off")
        return make_service(load(decoder_folder), read_beside(decoder_folder), NAME)


@pytest.fixture(scope="module")
def server(service):
    with running_server(build_app(service)) as url:
        yield url


class Paced:
    """An engine that counts up for ever, a token whenever it may."""

    context = 1 << 30

    def __init__(self):
        self.go = threading.Semaphore(0)
        self.made, self.closed, self.running = 0, 0, 0

    def turns(self, ids, options):
        self.running += 1
        try:
            for number in itertools.islice(itertools.count(), options.max_new_tokens):
                assert self.go.acquire(timeout=60)
                self.made += 1
                yield 64 + number % 26
        finally:
            self.closed += 1
            self.running -= 1


def paced(service, **limits):
    engine = Paced()
    bounds = Limits(**limits)
    served = replace(service, writer=replace(service.writer, engine=engine))
    return engine, running_server(build_app(served, bounds), bounds)


def texts_of(reply):
    return [c["text"] for event in reply.events for c in event["choices"]]


def test_completion_is_what_the_engine_writes(server, service):
    document = call(server, "/v1/completions", GREEDY).document
    writer = service.writer
    ids = writer.tokens.tokenizer.encode("the dog").ids
    tokens = list(writer.engine.generate(ids, GenerationOptions(24, stop=writer.ends)))
    choice = document["choices"][0]
    assert choice["text"] == writer.tokens.tokenizer.decode(tokens).rstrip("\ufffd")
    assert document["object"] == "text_completion"
    assert document["usage"]["prompt_tokens"] == len(ids)
    assert document["usage"]["completion_tokens"] == len(tokens)
    assert choice["finish_reason"] == ("length" if len(tokens) == 24 else "stop")
    same = call(server, "/v1/completions", {**GREEDY, "prompt": ids}).document
    assert same["choices"][0]["text"] == choice["text"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 1},
    ],
)
def test_streamed_pieces_add_up_to_the_whole_text(server, more):
    body = {**GREEDY, **more}
    whole = call(server, "/v1/completions", body).document
    reply = call(server, "/v1/completions", {**body, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "".join(texts_of(reply)) == whole["choices"][0]["text"]
    assert len(texts_of(reply)) > 3
    reasons = [event["choices"][0]["finish_reason"] for event in reply.events]
    assert set(reasons[:-1]) == {None}
    assert reasons[-1] == whole["choices"][0]["finish_reason"]


def test_streamed_chat_adds_up_and_tells_its_usage(server):
    whole = call(server, "/v1/chat/completions", CHAT).document
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    reply = call(server, "/v1/chat/completions", body)
    *events, last = reply.events
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "".join(pieces)}
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert whole["usage"]["prompt_tokens"] == len("<user>Hi") + 1 + len("<assistant>")


def test_a_chat_may_go_on_to_the_end_of_the_context(server, service):
    body = {"messages": CHAT["messages"], "temperature": 0}
    usage = call(server, "/v1/chat/completions", body).document["usage"]
    assert 24 < usage["total_tokens"] <= service.writer.engine.context


def test_stop_texts_are_not_given(server):
    whole = call(server, "/v1/completions", GREEDY).document["choices"][0]["text"]
    stop = whole[4:6]
    body = {**GREEDY, "stop": ["never seen", stop]}
    choice = call(server, "/v1/completions", body).document["choices"][0]
    assert choice["text"] == whole[: whole.index(stop)]
    assert choice["finish_reason"] == "stop"
    streamed = call(server, "/v1/completions", {**body, "stream": True})
    assert "".join(texts_of(streamed)) == choice["text"]


def test_seeds_repeat_and_no_seed_varies(server):
    body = {**GREEDY, "temperature": 5.0}
    texts = [call(server, "/v1/completions", body).body.split(b"choices")[1] for _ in range(4)]
    assert len(set(texts)) > 1


def test_many_clients_at_once_get_what_they_would_get_alone(server):
    bodies = [{**GREEDY, "prompt": f"text {i}", "stream": bool(i % 2)} for i in range(24)]
    alone = [call(server, "/v1/completions", {**b, "stream": False}).document for b in bodies]
    with ThreadPoolExecutor(24) as pool:
        replies = list(pool.map(lambda b: call(server, "/v1/completions", b), bodies))
    for body, reply, expected in zip(bodies, replies, alone, strict=True):
        found = "".join(texts_of(reply)) if body["stream"] else reply.document["choices"][0]["text"]
        assert found == expected["choices"][0]["text"]


def test_a_slow_reader_waits_alone(service):
    engine, running = paced(service, stream_tokens=4)
    for _ in range(100_000):
        engine.go.release()
    endless = {"prompt": "x", "max_tokens": 1_000_000, "stream": True}
    with running as url:
        slow = open_raw(url, raw_request("/v1/completions", endless), receive_buffer=4096)
        assert slow.recv(64)
        # It fills the system's buffers and its own, and then no token is made for it.
        seen = -1
        while seen != engine.made:
            seen = engine.made
            quick = call(url, "/v1/completions", {"prompt": "x", "max_tokens": 200})
            assert quick.document["usage"]["completion_tokens"] == 200
            seen += 200
        assert engine.made < 100_000
        slow.close()
        wait_for(lambda: engine.running == 0)


def test_a_reader_that_never_reads_is_dropped_in_the_end(service):
    engine, running = paced(service, stream_tokens=4, timeout_seconds=1.0)
    for _ in range(100_000):
        engine.go.release()
    endless = {"prompt": "x", "max_tokens": 1_000_000, "stream": True}
    with running as url:
        stuck = open_raw(url, raw_request("/v1/completions", endless), receive_buffer=4096)
        wait_for(lambda: engine.closed == 1)
        assert engine.made < 100_000
        stuck.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_text(service, stream):
    engine, running = paced(service)
    body = {"prompt": "x", "max_tokens": 1_000_000, "stream": stream}
    with running as url:
        client = open_raw(url, raw_request("/v1/completions", body))
        for _ in range(5):
            engine.go.release()
        wait_for(lambda: engine.made == 5)
        client.close()
        # The token that is being made is finished.
        wait_for(lambda: engine.go.release() or engine.closed == 1)
        unfinished = 'gossamer_request_errors_total{endpoint="/v1/completions"}'
        wait_for(lambda: metric(url, unfinished) == 1)


def test_texts_beyond_the_places_wait_and_beyond_the_queue_get_503(service):
    engine, running = paced(service, max_streams=2, max_queue=3)
    body = {"prompt": "x", "max_tokens": 100}
    with running as url, ThreadPoolExecutor(8) as pool:
        first = [pool.submit(call, url, "/v1/completions", body) for _ in range(2)]
        # The second one gets its place when the first has got a token.
        wait_for(lambda: engine.go.release() or engine.running == 2)
        waiting = [pool.submit(call, url, "/v1/completions", body) for _ in range(3)]
        wait_for(lambda: metric(url, "gossamer_queue_length") == 3)
        full = call(url, "/v1/completions", {**body, "stream": True})
        assert full.status == 503
        assert "retry-after" in full.headers
        for _ in range(5 * 100):
            engine.go.release()
        assert [r.result(60).status for r in [*first, *waiting]] == [200] * 5
        assert metric(url, "gossamer_generated_tokens_total") == 500


def test_an_engine_that_fails_in_mid_text(service):
    class Failing:
        context = 100

        def turns(self, ids, options):
            yield 65
            raise ZeroDivisionError("bad day")

    served = replace(service, writer=replace(service.writer, engine=Failing()))
    with running_server(build_app(served)) as url:
        body = {"prompt": "x", "max_tokens": 4}
        reply = call(url, "/v1/completions", body)
        assert (reply.status, "bad day" in reply.message) == (500, True)
        reply = call(url, "/v1/completions", {**body, "stream": True})
        assert b"bad day" in reply.body
        assert b"[DONE]" not in reply.body
        assert call(url, "/health").status == 200


def test_a_token_that_never_comes_ends_the_wait(service):
    engine, running = paced(service, timeout_seconds=0.5)
    with running as url:
        assert call(url, "/v1/completions", {"prompt": "x"}).status == 504
        reply = call(url, "/v1/completions", {"prompt": "x", "stream": True})
        assert b"no token within" in reply.body
        for _ in range(100):
            engine.go.release()


BAD = [
    ("/v1/completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
    ("/v1/completions", {"prompt": "x", "max_tokens": "5"}, "max_tokens"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 10**9}, "more than the 384"),
    ("/v1/completions", {"prompt": "x" * 400}, "expected at most 384"),
    ("/v1/completions", {"prompt": ["x", "y"]}, "expected one prompt, got 2"),
    ("/v1/completions", {"prompt": ""}, "empty text"),
    ("/v1/completions", {"prompt": "x", "temperature": -1}, "temperature"),
    ("/v1/completions", {"prompt": "x", "temperature": float("nan")}, "temperature"),
    ("/v1/completions", {"prompt": "x", "top_p": 0}, "top_p"),
    ("/v1/completions", {"prompt": "x", "n": 2}, "n:"),
    ("/v1/completions", {"prompt": "x", "stop": ["a"] * 5}, "stop"),
    ("/v1/completions", {"prompt": "x", "stop": ""}, "stop"),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"5": 1}}, "tokens are not biased"),
    ("/v1/completions", {"prompt": "x", "beams": 2}, "is no field"),
    ("/v1/completions", {"prompt": "x", "stream": "yes"}, "stream"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": "Hi"}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "god", "content": "x"}]}, "messages.0.role"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages.0.content"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        'parts {"type": "text"',
    ),
]


@pytest.mark.parametrize(("path", "body", "text"), BAD, ids=lambda value: str(value)[:50])
def test_mistakes_say_what_is_wrong_and_where(server, path, body, text):
    reply = call(server, path, body)
    assert reply.status == 422, reply.body
    assert text in reply.message


def test_content_may_come_in_parts(server):
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    body = {**CHAT, "messages": [{"role": "user", "content": parts}]}
    found = call(server, "/v1/chat/completions", body).document["choices"]
    assert found == call(server, "/v1/chat/completions", CHAT).document["choices"]


def test_a_model_without_template_says_so(service):
    served = replace(
        service, writer=replace(service.writer, template=type(service.writer.template)({}))
    )
    with running_server(build_app(served)) as url:
        reply = call(url, "/v1/chat/completions", CHAT)
        assert reply.status == 422
        assert "no chat template" in reply.message
        assert call(url, "/v1/completions", GREEDY).status == 200
