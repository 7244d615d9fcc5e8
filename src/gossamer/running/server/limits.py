# SPDX-License-Identifier: Apache-2.0
"""How much a server takes on at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds that keep a server's memory and waiting times finite.

    Attributes:
        max_queue: requests that may wait; one more is refused with 503.
        max_batch_tokens: tokens of one call of the model, padding counted. A single text may be
            longer, up to the positions of the model.
        timeout_seconds: for the headers of a request; from then on for the rest of it and its
            answer, or the first token of a text, together; for each token that follows; and for a
            client to read what it has been sent.
        max_body_bytes: of a request.
        max_texts: of a request.
        max_streams: texts that are generated in turns; others wait.
        stream_tokens: tokens a client may be behind before its text waits for it.
    """

    max_queue: int = 256
    max_batch_tokens: int = 4096
    timeout_seconds: float = 60.0
    max_body_bytes: int = 4 << 20
    max_texts: int = 2048
    max_streams: int = 8
    stream_tokens: int = 64


class QueueFull(Exception):
    """As many requests wait as may."""
