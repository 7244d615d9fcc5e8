# SPDX-License-Identifier: Apache-2.0
"""Changes inside of containers, which are whole again afterwards: safetensors, .npz, ONNX."""

import io
import random
import struct
import zipfile
from typing import Any

from value_changes import NUMBERS, ODD_NUMBERS, TEXTS, change_bytes, change_json


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
    if not entries:
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
        content = content[: draw.randrange(len(content) + 1)]
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
