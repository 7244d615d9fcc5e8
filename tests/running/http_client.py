# SPDX-License-Identifier: Apache-2.0
"""A plain HTTP client for tests, and sockets for what no well-behaved client does."""

import http.client
import json
import re
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

SECONDS = 60


@dataclass
class Reply:
    status: int
    headers: dict
    body: bytes

    @property
    def document(self):
        return json.loads(self.body)

    @property
    def message(self):
        return self.document["error"]["message"]

    @property
    def events(self):
        """Contents of server-sent events, [DONE] left out; it must be the last one."""
        lines = [part.removeprefix("data: ") for part in self.body.decode().split("\n\n") if part]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


def call(
    url, path, body=None, *, raw=None, content_type="application/json", timeout=SECONDS, key=None
):
    """One request on a connection of its own; GET without a body."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=timeout)
    try:
        sent = raw if body is None else json.dumps(body).encode()
        method = "GET" if sent is None else "POST"
        headers = {"Content-Type": content_type}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, path, sent, headers)
        response = connection.getresponse()
        return Reply(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def open_raw(url, content=b"", receive_buffer=None):
    """A connected socket on which `content` has been sent."""
    place = urlsplit(url)
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(SECONDS)
    client.connect((place.hostname, place.port))
    client.sendall(content)
    return client


def raw_request(path, body, length=None):
    """Bytes of a POST; `length` lies about its size."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length or len(content)}\r\n\r\n".encode() + content


def metric(url, name):
    """A number of /metrics; several with that name and different labels are added."""
    text = call(url, "/metrics").body.decode()
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.M)
    return sum(map(float, found))


def wait_for(condition, seconds=SECONDS):
    """Return when `condition()` holds; fail when that takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
