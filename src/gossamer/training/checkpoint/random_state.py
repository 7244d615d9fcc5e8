# SPDX-License-Identifier: Apache-2.0
"""The global random generators of Python, numpy and torch, as state that can be saved."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gossamer.errors import ArtifactError

__all__ = [
    "capture_random",
    "restore_random",
    "seed_all",
    "undisturbed_random",
]


def capture_random() -> dict[str, Any]:
    """The state of all of them."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002  (the global one)
    return {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "key": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
            "position": int(numpy_state["state"]["pos"]),
            "has_gauss": int(numpy_state["has_gauss"]),
            "gauss": float(numpy_state["gauss"]),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random(state: Mapping[str, Any]) -> None:
    """Put all of them back."""
    try:
        python, numpy_state = state["python"], state["numpy"]
        random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
        np.random.set_state(  # noqa: NPY002  (the global one)
            {
                "bit_generator": "MT19937",
                "state": {
                    "key": numpy_state["key"].numpy().astype(np.uint32),
                    "pos": numpy_state["position"],
                },
                "has_gauss": numpy_state["has_gauss"],
                "gauss": numpy_state["gauss"],
            }
        )
        torch.set_rng_state(state["torch"])
        if state["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ArtifactError(
            f"random generators: the saved state is not usable ({error})."
        ) from error


@contextmanager
def undisturbed_random() -> Iterator[None]:
    """Whatever the block draws, the generators go on afterwards as if it had not run."""
    state = capture_random()
    try:
        yield
    finally:
        restore_random(state)


def seed_all(seed: int) -> None:
    """Start all of them from one seed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (the global one)
    torch.manual_seed(seed)
