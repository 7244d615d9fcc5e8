# SPDX-License-Identifier: Apache-2.0
"""Models whose weights stay in their file until each is packed: no dense model is ever in memory.

`stream` gives one with what lies beside it. What reads a kind of file is imported when there is one
of that kind: a start of a second has no time for the others.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gossamer.io.safe_files.directories import AnyPath
from gossamer.nn.streamed import StreamedModel

__all__ = ["Streamed", "stream"]


@dataclass(frozen=True)
class Streamed:
    """A model without weights, which can be fetched, and files beside it by name."""

    model: StreamedModel
    beside: dict[str, bytes]


@contextmanager
def stream(path: AnyPath) -> Iterator[Streamed | None]:
    """A model whose weights are read when they are fetched, while the context lasts.

    None for whatever has to be loaded as a whole: `load` does, and says what is wrong with a file.
    """
    if Path(path).suffix == ".gguf" and Path(path).is_file():
        from gossamer.io.gguf import stream_gguf

        opened = stream_gguf(path)
        if opened is None:
            yield None
        else:
            with opened.file:
                yield Streamed(opened.model, opened.beside)
        return
    from gossamer.io.artifact import find_artifact
    from gossamer.io.artifact.streamed import stream_artifact
    from gossamer.io.loading import read_beside

    model = stream_artifact(path) if find_artifact(path)[1] else None
    yield None if model is None else Streamed(model, read_beside(path))
