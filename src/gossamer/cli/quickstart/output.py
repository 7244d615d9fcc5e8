# SPDX-License-Identifier: Apache-2.0
"""What both quickstarts leave behind: `report.html`, `report.json` and the saved models."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gossamer.errors import ArtifactError
from gossamer.io.artifact import check_destination
from gossamer.report import Page, write_html

MODEL_FOLDER = "model"
DENSE_FOLDER = "dense"
HTML_FILE = "report.html"
# What a page of ours always says, so that another tool's file is not overwritten.
_SIGNATURE = "Written by gossamer"


@dataclass(frozen=True)
class Story:
    """One quickstart: the page, further data for --json, and closing remarks."""

    page: Page
    extra: dict[str, Any]
    remarks: list[str]

    def document(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "title": self.page.title,
            "comparison": self.page.comparison.to_dict(),
            "steps": self.page.steps,
            "notes": self.page.notes,
            **self.extra,
            "layers": [asdict(row) for row in self.page.layers],
            "machine": dict(self.page.machine),
        }


def check_folder(folder: Path) -> None:
    """Refuse before any work if something in `folder` is not ours to replace."""
    if folder.exists() and not folder.is_dir():
        raise ArtifactError(f"{folder}: exists and is not a folder. Choose another --out.")
    for name in (MODEL_FOLDER, DENSE_FOLDER):
        check_destination(folder / name)
    page = folder / HTML_FILE
    if page.exists() and _SIGNATURE not in page.read_text(encoding="utf-8", errors="replace"):
        raise ArtifactError(
            f"{page}: was not written by gossamer. It was left alone. Choose another --out."
        )


def publish(story: Story, folder: Path) -> Path:
    """Write the data and the page; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(story.document(), indent=2, allow_nan=False)
    (folder / "report.json").write_text(content + "\n", encoding="utf-8")
    return write_html(story.page, folder / HTML_FILE)
