# SPDX-License-Identifier: Apache-2.0
"""Changes to bytes, lines and JSON values, of the kinds that break readers."""

import json
import random
from typing import Any

NUMBERS = (0, 1, -1, 2, 3, 7, 8, 31, 127, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**40)
NUMBERS += (2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), 10**38, 10**45)
ODD_NUMBERS = (0.0, -0.0, 0.5, 1.5, -1.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"))
TEXTS = (
    "",
    "a",
    "0",
    "-1",
    "\0",
    "..",
    "../x",
    "/etc/passwd",
    "a\nb",
    "\ud800",
    "\udc00x",
    "\u2028",
)
TEXTS += ("é", "\U0001f600", "{{", "${x}", "%s", "n" * 600, "x" * 70_000, "None", "nan", "1e400")
LINES = (b"", b"{}", b"[]", b"null", b"\xff\xfe", b"\xef\xbb\xbf", b'{"text": 1}', b"a,b,c", b'"')
SIZES = (0, 1, 2, 4, 7, 8, 16, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**64 - 1)


def change_bytes(raw: bytes, draw: random.Random) -> bytes:
    """Flip, overwrite, cut, repeat and move bytes, one to six times."""
    data = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        size = len(data)
        place = draw.randrange(size + 1)
        kind = draw.randrange(8)
        if kind == 0 and size:
            data[place % size] ^= 1 << draw.randrange(8)
        elif kind == 1 and size:
            data[place % size] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif kind == 2:
            data[place : place + draw.choice((1, 2, 4, 8))] = b""
        elif kind == 3:
            data[place:place] = draw.randbytes(draw.choice((1, 2, 4, 8)))
        elif kind == 4:
            del data[place:]
        elif kind == 5:
            other = draw.randrange(size + 1)
            data[place:place] = data[other : other + draw.randrange(1, 33)]
        elif kind == 6:
            width = draw.choice((1, 2, 4, 8))
            number = draw.choice(SIZES) & ((1 << 8 * width) - 1)
            order: Any = draw.choice(("little", "big"))
            data[place : place + width] = number.to_bytes(width, order)
        else:
            data += draw.randbytes(draw.choice((1, 8, 64)))
    return bytes(data)


def change_lines(raw: bytes, draw: random.Random) -> bytes:
    """Drop, repeat, swap and replace lines; numbers and words inside of them too."""
    lines = raw.split(b"\n")
    for _ in range(draw.choice((1, 1, 2, 4))):
        place = draw.randrange(len(lines))
        kind = draw.randrange(7)
        if kind == 0:
            lines.pop(place)
        elif kind == 1:
            lines.insert(place, lines[draw.randrange(len(lines))])
        elif kind == 2:
            lines[place] = draw.choice(LINES)
        elif kind == 3:
            lines[place] = b" " * draw.choice((1, 2, 4)) + lines[place]
        elif kind == 4:
            head, mark, _ = lines[place].partition(draw.choice((b":", b",", b"\t", b'"')))
            lines[place] = head + mark + b" " + _scalar_text(draw)
        elif kind == 5:
            lines[place] = change_bytes(lines[place], draw)
        else:
            deep = draw.choice((40, 400, 100_000))
            lines[place] = draw.choice((b"[", b'{"a":', b"- ")) * deep
        lines = lines or [b""]
    return b"\n".join(lines)


def change_json(raw: bytes, draw: random.Random) -> bytes:
    """Swap, drop, rename, nest and replace values; sometimes what no writer of JSON writes."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return change_bytes(raw, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        value = change_value(value, draw)
    text = json.dumps(value, ensure_ascii=draw.random() < 0.9)
    if draw.random() < 0.1:
        text = _odd_json(text, draw)
    return text.encode("utf-8", "surrogatepass")


def change_value(value: Any, draw: random.Random) -> Any:
    """The value with one place changed, at any depth."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        kind = draw.randrange(10)
        if kind < 6:
            value[key] = change_value(value[key], draw)
        elif kind == 6:
            value.pop(key)
        elif kind == 7:
            value[draw.choice((*TEXTS[:8], key + "x", key * 2))] = value.pop(key)
        elif kind == 8:
            value[draw.choice(list(value))] = value[key]
        else:
            value[draw.choice(("x", "$tensor", "__metadata__", "kind"))] = scalar(draw)
        return value
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        kind = draw.randrange(8)
        if kind < 4:
            value[place] = change_value(value[place], draw)
        elif kind == 4:
            value.pop(place)
        elif kind == 5:
            value.insert(place, value[draw.randrange(len(value))])
        elif kind == 6:
            value.insert(place, scalar(draw))
        else:
            draw.shuffle(value)
        return value
    kind = draw.randrange(8)
    if type(value) is int and kind < 4:
        return value + draw.choice((-1, 1, -value, value, 8, 2**31))
    if isinstance(value, str) and kind < 3:
        return value[: draw.randrange(len(value) + 1)] + draw.choice(TEXTS)
    if kind == 7:
        return draw.choice(([value], {"a": value}, [], {}, [[value]] * 3))
    return scalar(draw)


def scalar(draw: random.Random) -> Any:
    """A number, a text or nothing, of the kinds that break readers."""
    kind = draw.randrange(5)
    if kind == 0:
        return draw.choice(NUMBERS)
    if kind == 1:
        return draw.choice(ODD_NUMBERS)
    if kind == 2:
        return draw.choice(TEXTS)
    return draw.choice((None, True, False, draw.randrange(10), draw.random()))


def _scalar_text(draw: random.Random) -> bytes:
    return str(scalar(draw))[:2000].encode("utf-8", "surrogatepass")


def _odd_json(text: str, draw: random.Random) -> str:
    deep = draw.choice((33, 200, 100_000))
    return draw.choice(
        (
            text[:-1] + ', "a": 1, "a": 2}',
            "[" * deep + text + "]" * deep,
            '{"a":' * deep,
            text + text,
            text.replace(":", ": NaN, ", 1),
            text.replace('"', '"\\ud800', 1),
            text[: draw.randrange(len(text) + 1)],
            "9" * draw.choice((30, 400, 5000)),
        )
    )
