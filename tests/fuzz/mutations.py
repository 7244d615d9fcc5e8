# SPDX-License-Identifier: Apache-2.0
"""Changes to files: bytes, texts, and the structure behind them, so that deep checks are reached.

A case is a set of files, by name. Everything is drawn from one `random.Random`, so the number of a
case is enough to make it again.
"""

import hashlib
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

Files = dict[str, bytes]
Change = Callable[[bytes, random.Random], bytes]

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


def change_safetensors(raw: bytes, draw: random.Random) -> bytes:
    """The header as JSON, with its length made to fit again; or the bytes."""
    length = int.from_bytes(raw[:8], "little")
    if draw.random() < 0.35 or len(raw) < 8 + length:
        return change_bytes(raw, draw)
    header = change_json(raw[8 : 8 + length], draw)
    return len(header).to_bytes(8, "little") + header + raw[8 + length :]


def change_npz(raw: bytes, draw: random.Random) -> bytes:
    """An array's header or bytes in an archive that is whole again; or the archive's bytes."""
    if draw.random() < 0.3:
        return change_bytes(raw, draw)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as packed:
            entries = [(name, packed.read(name)) for name in packed.namelist()]
    except Exception:
        return change_bytes(raw, draw)
    place = draw.randrange(len(entries))
    name, content = entries[place]
    kind = draw.randrange(5)
    if kind == 0:
        content = change_bytes(content, draw)
    elif kind in (1, 2):
        content = _change_npy_header(content, draw)
    elif kind == 3:
        name = draw.choice((name + "x", "x.npy", "../x", "", entries[0][0]))
    else:
        content = content[: draw.randrange(len(content))]
    entries[place] = (name, content)
    packing = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as packed:
        for name, content in {**dict(entries)}.items():
            packed.writestr(name or "x", content)
    return made.getvalue()


def _change_npy_header(content: bytes, draw: random.Random) -> bytes:
    start = content.find(b"{")
    end = content.find(b"\n")
    if min(start, end) < 0:
        return content
    header = content[start:end]
    for old, new in (
        (b"(", draw.choice((b"((", b"(-", b"(10**9*", b"(99999999999,", b"['a',"))),
        (b"<", draw.choice((b">", b"|", b"O", b"<V", b"'{'"))),
        (b"False", draw.choice((b"True", b"1", b"None", b"()"))),
        (b"}", draw.choice((b"", b",'x':1}", b"}}", b"(" * 300))),
    ):
        if draw.random() < 0.4:
            header = header.replace(old, new, 1)
    body = header.rstrip() + b"\n"
    if draw.random() < 0.2:
        body = change_bytes(body, draw)
    return content[:8] + struct.pack("<H", len(body) & 0xFFFF) + body + content[end + 1 :]


def change_onnx(raw: bytes, draw: random.Random) -> bytes:
    """Fields of the protobuf message; or its bytes."""
    import onnx

    model = onnx.ModelProto()
    if draw.random() < 0.3:
        return change_bytes(raw, draw)
    try:
        model.ParseFromString(raw)
    except Exception:
        return change_bytes(raw, draw)
    for _ in range(draw.choice((1, 1, 2, 4))):
        _change_message(model, draw)
    return model.SerializeToString()


def _change_message(message: Any, draw: random.Random) -> None:
    """Go down to a field that is set, and change it."""
    while True:
        fields = message.ListFields()
        if not fields:
            return
        # Most of a model is its graph.
        field, value = draw.choice([*fields, fields[-1]])
        repeated = hasattr(value, "append") or hasattr(value, "add")
        if repeated and len(value):
            place = draw.randrange(len(value))
            if draw.random() < 0.15:
                del value[place]
                return
            if hasattr(value, "add"):
                if draw.random() < 0.15:
                    value.add().CopyFrom(value[place])
                    return
                message = value[place]
                continue
            _set(value, place, value[place], draw)
            return
        if hasattr(value, "ListFields"):
            if draw.random() < 0.05:
                message.ClearField(field.name)
                return
            message = value
            continue
        _set(message, field.name, value, draw)
        return


def _set(holder: Any, place: Any, old: Any, draw: random.Random) -> None:
    if isinstance(old, bytes):
        new: Any = change_bytes(old, draw)
    elif isinstance(old, str):
        new = draw.choice(
            (*(t for t in TEXTS if "\ud800" not in t and "\udc00" not in t), old + "x")
        )
    elif isinstance(old, float):
        new = draw.choice(ODD_NUMBERS)
    else:
        new = draw.choice((old + 1, old - 1, *NUMBERS))
    try:
        if isinstance(place, int):
            holder[place] = new
        else:
            setattr(holder, place, new)
    except (ValueError, TypeError, OverflowError):
        return


BY_SUFFIX: dict[str, Change] = {
    ".json": change_json,
    ".safetensors": change_safetensors,
    ".npz": change_npz,
    ".onnx": change_onnx,
    ".jsonl": change_lines,
    ".txt": change_lines,
    ".csv": change_lines,
    ".tsv": change_lines,
    ".yaml": change_lines,
    ".jinja": change_lines,
}


def change_files(files: Files, draw: random.Random) -> Files:
    """One to three of the files changed, each by its kind; rarely one is dropped or swapped."""
    changed = dict(files)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        name = draw.choice(sorted(changed))
        chance = draw.random()
        if chance < 0.02 and len(changed) > 1:
            changed.pop(name)
        elif chance < 0.04:
            changed[name] = changed[draw.choice(sorted(changed))]
        else:
            suffix = name[name.rfind(".") :]
            change = BY_SUFFIX.get(suffix, change_bytes)
            if name.endswith(".jsonl") and draw.random() < 0.5:
                changed[name] = _change_json_lines(changed[name], draw)
            elif draw.random() < 0.2:
                changed[name] = change_bytes(changed[name], draw)
            else:
                changed[name] = change(changed[name], draw)
    return changed


def _change_json_lines(raw: bytes, draw: random.Random) -> bytes:
    lines = raw.split(b"\n")
    place = draw.randrange(len(lines))
    lines[place] = change_json(lines[place] or b"{}", draw)
    return b"\n".join(lines)


def rehash(files: Files, manifest: str = "manifest.json") -> Files:
    """The same files with sizes, hashes and the manifest's own digest made to fit."""
    from gossamer.io.manifest import digest_of
    from gossamer.io.strict_json import pretty_json

    try:
        content = json.loads(files[manifest])
        content.pop("digest", None)
        for name, entry in content["files"].items():
            if name in files:
                raw = files[name]
                entry.update(size=len(raw), sha256=hashlib.sha256(raw).hexdigest())
        content["digest"] = digest_of(content)
        return {**files, manifest: pretty_json(content)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return files
