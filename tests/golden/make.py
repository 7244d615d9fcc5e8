# SPDX-License-Identifier: Apache-2.0
"""Write golden files of catalogue entries that have none yet: python tests/golden/make.py

An entry that has its files is left alone: they hold what an earlier version wrote.
"""

import json
from pathlib import Path

import torch
from catalogue import MODELS
from states import state_of

import gossamer

FILES = Path(__file__).parent / "files"


def main() -> None:
    """One artifact and the digests of its state for each new entry."""
    for number, (name, make) in enumerate(MODELS.items()):
        folder = FILES / name
        if folder.exists():
            continue
        torch.manual_seed(number)
        model = make().eval()
        gossamer.save(model, folder)
        (FILES / f"{name}.json").write_text(json.dumps(state_of(model), indent=1) + "\n")
        print(name, sum(file.stat().st_size for file in folder.iterdir()))


if __name__ == "__main__":
    main()
