# SPDX-License-Identifier: Apache-2.0
"""Who is answered, by when, and in a way that can be read: over real sockets."""

import http.client
import socket
import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from http_client import call, metric, open_raw, raw_request

from gossamer.errors import InputError
from gossamer.io import load, read_beside
from gossamer.running.server import Access, Limits, build_app, make_service, running_server
from gossamer.running.text.chat import ChatTemplate
from gossamer.running.text.chat.template_process import TemplateProcess

NAME = "org/writer"
KEY = "sk-1234567890"
BODY = {"prompt": "the dog", "max_tokens": 2, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
SHORT = 1.0


@pytest.fixture(scope="module")
def service(decoder_folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOSSAMER_TUNE", "off")
        return make_service(load(decoder_folder), read_beside(decoder_folder), NAME)


@pytest.fixture(scope="module")
def server(service):
    with running_server(build_app(service)) as url:
        yield url


@pytest.fixture(scope="module")
def hasty(service):
    limits = Limits(timeout_seconds=SHORT)
    with running_server(build_app(service, limits), limits) as url:
        yield url


@pytest.fixture(scope="module")
def small(service):
    limits = Limits(max_body_bytes=10_000)
    with running_server(build_app(service, limits), limits) as url:
        yield url


@pytest.fixture(scope="module")
def locked(service):
    with running_server(build_app(service, access=Access(["Example.org"], KEY))) as url:
        yield url


def ask(url, headers, path="/health", method="GET"):
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def answer_of(client):
    """All that comes until the other side closes."""
    content = b""
    while part := client.recv(65536):
        content += part
    return content


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:80", "localhost.", "a.localhost:1", "127.0.0.1", "127.9.9.9:5"),
        *("[::1]", "[::1]:8000"),
    ],
)
def test_names_of_the_loopback_are_answered(server, host):
    assert ask(server, [("Host", host)])[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
        *("192.168.0.1", "[::2]", "10.0.0.1", "", "127.0.0.1@evil.example", "xlocalhost", "127.1"),
    ],
)
def test_other_names_are_not(server, host):
    status, body = ask(server, [("Host", host)])
    assert status == 421
    assert b"is no name of this server" in body


def test_names_that_were_given_are_answered(locked):
    assert ask(locked, [("Host", "example.ORG:443")])[0] == 200
    assert ask(locked, [("Host", "sub.example.org")])[0] == 421


def test_any_name_where_that_was_said(service):
    with running_server(build_app(service, access=Access(None))) as url:
        assert ask(url, [("Host", "evil.example")])[0] == 200


@pytest.mark.parametrize(
    "header",
    [None, "", KEY, "Bearer", "Bearer wrong", f"Bearer {KEY}x", f"Basic {KEY}", "Bearer é"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/no/such/path"])
def test_without_the_key_there_is_no_answer(locked, header, path):
    headers = [("Host", "localhost")] + ([] if header is None else [("Authorization", header)])
    status, body = ask(locked, headers, path)
    assert status == 401
    assert KEY.encode() not in body


def test_with_the_key_there_is(locked):
    for scheme in ("Bearer", "bearer"):
        headers = [("Host", "localhost"), ("Authorization", f"{scheme} {KEY}")]
        assert ask(locked, headers, "/v1/models")[0] == 200
    # Two are none.
    assert ask(locked, [*headers, headers[1]], "/v1/models")[0] == 401
    assert ask(locked, [("Host", "localhost")], "/health")[0] == 200


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 1025, "a\nb"])
def test_keys_that_cannot_be_sent_are_refused_and_not_shown(key):
    with pytest.raises(InputError, match="api_key: expected 1 to 1024 printable") as caught:
        Access(api_key=key)
    assert key.strip() in ("", "a b", "a\nb") or key not in str(caught.value)
    assert "secret" not in repr(Access(api_key="secret"))


def test_models(server):
    document = call(server, "/v1/models").document
    assert document["object"] == "list"
    (model,) = document["data"]
    assert (model["id"], model["object"]) == (NAME, "model")
    assert call(server, f"/v1/models/{NAME}").document == model
    assert call(server, "/v1/models/gpt-4").status == 404


@pytest.mark.parametrize("where", ["/v1/completions", "/no/such/path", "/health"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_far_too_much_can_read_the_answer(small, where, chunked):
    """Much more than the system buffers, all of it before the answer is looked at."""
    place = urlsplit(small)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    content = b" " * (16 << 20)
    body = (content[i : i + (1 << 20)] for i in range(0, len(content), 1 << 20))
    headers = {"Content-Type": "application/json", "Connection": "close"}
    connection.request("POST", where, body if chunked else content, headers, encode_chunked=chunked)
    response = connection.getresponse()
    assert response.status in ((413,) if where == "/v1/completions" else (404, 405, 413))
    assert b'"error"' in response.read()
    connection.close()


def test_a_client_that_announces_too_much_is_told_before_it_sends(small):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n"
    client = open_raw(small, head + b"Expect: 100-continue\r\n\r\n")
    assert answer_of(client).startswith(b"HTTP/1.1 413")
    client.close()


def drip(url, head, drop):
    """Send `drop` again and again; what the server said when it had enough."""
    client = open_raw(url, head)
    client.settimeout(0.05)
    start = time.monotonic()
    found = b""
    while time.monotonic() < start + 30:
        try:
            found = client.recv(65536)
            client.settimeout(5)
            try:
                # Headers and body may come apart.
                while more := client.recv(65536):
                    found += more
            except OSError:
                pass
            break
        except TimeoutError:
            pass
        try:
            client.sendall(drop)
        except OSError:
            break
    client.close()
    return found


@pytest.mark.parametrize(
    "head",
    [
        raw_request("/v1/completions", {}, length=9999),
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["length", "chunks"],
)
def test_a_body_that_drips_has_its_time(hasty, head):
    found = drip(hasty, head, b"1\r\n \r\n")
    assert found.startswith(b"HTTP/1.1 408")
    assert b"incomplete after 1 s" in found


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_headers_that_drip_have_their_time(hasty, before):
    client = open_raw(hasty, before + b"POST /v1/completions HTTP/1.1\r\nX: ")
    start = time.monotonic()
    gone = threading.Event()

    def send():
        try:
            while not gone.wait(0.05):
                client.sendall(b"x")
        except OSError:
            pass

    thread = threading.Thread(target=send)
    thread.start()
    try:
        found = answer_of(client)
    except ConnectionResetError:
        found = None
    gone.set()
    thread.join()
    client.close()
    assert found is None or b"200 OK" in found or not before
    assert time.monotonic() - start < 20


def test_a_connection_that_says_nothing_is_closed(hasty):
    client = open_raw(hasty)
    assert answer_of(client) == b""
    client.close()


def test_connections_that_are_used_stay(hasty):
    place = urlsplit(hasty)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
    connection.connect()
    used = connection.sock
    for _ in range(4):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        time.sleep(SHORT / 2)
    assert connection.sock is used
    connection.close()


SLOW = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x"
LARGE = (
    "{% set n = namespace(s='a') %}{% for a in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
)


def with_template(service, source, seconds):
    template = ChatTemplate({"chat_template.jinja": source.encode()}, TemplateProcess(seconds))
    return replace(service, writer=replace(service.writer, template=template))


def test_a_template_that_never_ends_is_504_in_time(service):
    limits = Limits(timeout_seconds=SHORT)
    served = with_template(service, SLOW, 3.0)
    with running_server(build_app(served, limits), limits) as url:
        reply = call(url, "/v1/chat/completions", CHAT)
        assert (reply.status, "no answer within 1 s" in reply.message) == (504, True)
        # Others are not held up.
        assert call(url, "/v1/completions", BODY).status == 200
        assert metric(url, "gossamer_queue_length") == 0


def test_a_template_that_takes_more_than_templates_may_is_504_with_the_reason(service):
    with running_server(build_app(with_template(service, SLOW, 0.5))) as url:
        reply = call(url, "/v1/chat/completions", CHAT)
        assert (reply.status, "takes longer than 0.5 s" in reply.message) == (504, True)


def test_a_template_that_takes_all_memory_is_422(service):
    with running_server(build_app(with_template(service, LARGE, 60))) as url:
        reply = call(url, "/v1/chat/completions", CHAT)
        assert (reply.status, "more than 512 MiB" in reply.message) == (422, True)
        assert call(url, "/v1/completions", BODY).status == 200


def test_spelled_special_tokens_are_text_unless_asked_for(server, service):
    def prompt_tokens(path, **body):
        return call(server, path, {**body, "max_tokens": 1}).document["usage"]["prompt_tokens"]

    talk = [{"role": "user", "content": "a</s>"}]
    asked = {"special_tokens": True}
    assert prompt_tokens("/v1/completions", prompt="a</s>") == 5
    assert prompt_tokens("/v1/completions", prompt="a</s>", **asked) == 2
    as_text = prompt_tokens("/v1/chat/completions", messages=talk)
    assert as_text == prompt_tokens("/v1/chat/completions", messages=talk, **asked) + 3


NEUTRAL = {
    "n": [None, 1, 1.0],
    "presence_penalty": [None, 0, 0.0, -0.0],
    "frequency_penalty": [None, 0],
    "logit_bias": [None, {}],
    "stop": [None, []],
    "stream": [None, False],
    "stream_options": [None, {}, {"include_usage": None, "include_obfuscation": False}],
    "user": [None, "me"],
    "seed": [None, 0, -1],
    "temperature": [None],
    "top_p": [None, 1],
    "top_k": [None],
    "model": [None, NAME],
    "special_tokens": [None, False],
}
NEUTRAL_CHAT = {
    **NEUTRAL,
    "response_format": [None, {"type": "text"}],
    "logprobs": [None, False],
    "top_logprobs": [None, 0],
    "tools": [None, []],
    "tool_choice": [None, "none", "auto"],
    "parallel_tool_calls": [None, True, False],
    "modalities": [None, ["text"]],
    "store": [None, False],
    "metadata": [None, {}, {"a": "b"}],
    "service_tier": [None, "auto", "default"],
    "reasoning_effort": [None],
    "max_completion_tokens": [None, 2],
}
NEUTRAL_COMPLETION = {
    **NEUTRAL,
    "best_of": [None, 1],
    "echo": [None, False],
    "logprobs": [None],
    "suffix": [None, ""],
}
ASKING = {
    "n": [2, True, "1", 0],
    "presence_penalty": [0.5, False, "0"],
    "logit_bias": [{"5": 1}],
    "stream_options": [{"include_obfuscation": True}, {"x": 1}],
    "user": [5, "x" * 513],
    "logprobs": [True, 5],
}
ASKING_CHAT = {
    **ASKING,
    "response_format": [{"type": "json_object"}, "text", {"type": "text", "x": 1}],
    "top_logprobs": [3],
    "tools": [[{"type": "function", "function": {"name": "f"}}]],
    "tool_choice": ["required"],
    "modalities": [["text", "audio"], []],
    "store": [True],
    "metadata": [{"a": 1}, "x"],
    "reasoning_effort": ["high"],
    "audio": [{}],
}
ASKING_COMPLETION = {**ASKING, "best_of": [2], "echo": [True], "suffix": ["x"], "logprobs": [0]}


def cases(table):
    return [{name: value} for name, values in table.items() for value in values]


@pytest.mark.parametrize(
    ("path", "body", "table"),
    [
        ("/v1/chat/completions", CHAT, NEUTRAL_CHAT),
        ("/v1/completions", BODY, NEUTRAL_COMPLETION),
    ],
)
def test_fields_that_ask_for_nothing_change_nothing(server, path, body, table):
    for more in cases(table):
        reply = call(server, path, {**body, **more})
        assert reply.status == 200, (more, reply.body)
    everything = {name: values[-1] for name, values in table.items()}
    plain = call(server, path, {**body, "temperature": 0})
    same = call(server, path, {**body, **everything, "temperature": 0})
    assert same.document["choices"] == plain.document["choices"]


@pytest.mark.parametrize(
    ("path", "body", "table"),
    [
        ("/v1/chat/completions", CHAT, ASKING_CHAT),
        ("/v1/completions", BODY, ASKING_COMPLETION),
    ],
)
def test_fields_that_ask_for_something_are_refused_by_name(server, path, body, table):
    for more in cases(table):
        reply = call(server, path, {**body, **more})
        assert reply.status == 422, (more, reply.body)
        assert reply.message.startswith(next(iter(more))), reply.message


MANY = {f"f{number}": number for number in range(100_000)}


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/v1/completions", {**BODY, **MANY}, "has 100003 fields; expected at most 64"),
        ("/v1/chat/completions", {**CHAT, "metadata": MANY}, "expected at most 16"),
        ("/v1/chat/completions", {"messages": [{**MANY, "role": "user"}]}, "expected at most 64"),
        ("/v1/chat/completions", {"messages": [{"r": 1, "s": 2}] * 1024}, "messages.0.role"),
        (
            "/v1/completions",
            {"prompt": ["x"] * 500_000},
            "has 500000 texts; expected at most 65536",
        ),
        (
            "/v1/completions",
            {"prompt": [[1]] * 500_000},
            "has 500000 texts; expected at most 65536",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_body_full_of_mistakes_is_refused_for_the_first(server, path, body, text):
    reply = call(server, path, body)
    assert reply.status == 422
    assert text in reply.message
    assert "messages.1." not in reply.message
    assert len(reply.message) < 1000


def test_an_answer_may_come_back_as_a_message(server):
    said = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None}
    body = {**CHAT, "messages": [*CHAT["messages"], {**said, "annotations": []}, *CHAT["messages"]]}
    assert call(server, "/v1/chat/completions", body).status == 200
    called = {**said, "tool_calls": [{"id": "1"}]}
    reply = call(server, "/v1/chat/completions", {**body, "messages": [called]})
    assert (reply.status, "tools are not called" in reply.message) == (422, True)


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-45, 1e-9, 10])
@pytest.mark.parametrize("more", [{}, {"top_p": 5e-324}, {"top_k": 10**30}, {"seed": 2**63 - 1}])
def test_numbers_at_the_edge_are_numbers(server, temperature, more):
    body = {**BODY, "temperature": temperature, **more}
    assert call(server, "/v1/completions", body).status == 200


@pytest.mark.parametrize(
    "raw", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1", b"10.1", b"9" * 5000, b"true"]
)
@pytest.mark.parametrize("field", [b"temperature", b"top_p", b"max_tokens", b"top_k", b"seed"])
def test_numbers_that_are_none_are_refused(server, field, raw):
    if (field, raw) == (b"seed", b"-1"):
        return
    content = b'{"prompt": "x", "%s": %s}' % (field, raw)
    reply = call(server, "/v1/completions", raw=content)
    assert reply.status in (400, 422), reply.body
    assert reply.message


def test_the_openai_client(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
    name = client.models.list().data[0].id
    answer = client.chat.completions.create(model=name, messages=CHAT["messages"], max_tokens=2)
    assert answer.choices[0].message.role == "assistant"
    assert client.completions.create(model=name, prompt="x", max_tokens=2).choices


def test_a_client_without_host_is_no_browser(server):
    place = urlsplit(server)
    with socket.create_connection((place.hostname, place.port), timeout=60) as client:
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert answer_of(client).startswith(b"HTTP/1.1 200")
