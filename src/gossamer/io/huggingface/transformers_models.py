# SPDX-License-Identifier: Apache-2.0
"""transformers models as data: no code and no network from files.

Classes are looked up in the auto tables of the installed transformers (`auto_tables.py`), and of a
configuration only what those classes read is used (`configurations.py`). Whether a model can run
at all is found out before its weights are read: it is built and called on the meta device, without
memory and numbers (`trial_run.py`). One layer of it will do where the family is in our own table.
"""

import sys
from typing import Any

import torch
from torch import nn

from gossamer.errors import ArtifactError
from gossamer.io.huggingface.auto_tables import known_class
from gossamer.io.huggingface.configurations import (
    CONFIG_FILE,
    in_table,
    make_config,
    one_layer,
    short,
)
from gossamer.io.huggingface.quiet import quiet_transformers
from gossamer.io.huggingface.trial_run import check_builds, check_runs, few_parts
from gossamer.io.safe_files.documents import parse_json
from gossamer.nn.families import answers

# Classes of our own table of families, by name: those that more is known about.
TRANSFORMERS_CLASSES: dict[str, str] = {
    name: classes.model_type for classes in answers("classes").values() for name in classes.names
}
# Modules and tensors that a model may have for each tensor of a file, and some for none.
_PARTS_PER_TENSOR, _SPARE_PARTS = 20, 1000
_MAX_PARTS = 1_000_000


def is_transformers(model: nn.Module) -> bool:
    """Whether `model` is a class of transformers itself, and not a subclass of the user's."""
    transformers = sys.modules.get("transformers")
    kind = type(model)
    return transformers is not None and getattr(transformers, kind.__name__, None) is kind


def config_of(model: nn.Module) -> dict[str, Any] | None:
    """What transformers would write to config.json for `model`; None for other models."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return None
    content = parse_json(model.config.to_json_string().encode(), CONFIG_FILE)
    return {**content, "architectures": [type(model).__name__]}


def build_transformers(
    name: str, config: dict[str, Any] | None, *, max_tensors: int, device: str = "meta"
) -> nn.Module:
    """A model of the auto tables with uninitialised weights on `device`."""
    if config is None:
        raise ArtifactError(f"{CONFIG_FILE}: is missing, but {name} cannot be built without it.")
    known = known_class(name, config, CONFIG_FILE)
    settings = make_config(known, config, max_tensors)
    parts = min(_PARTS_PER_TENSOR * max_tensors + _SPARE_PARTS, _MAX_PARTS)
    from transformers.initialization import no_init_weights

    table = in_table(known.model_type)
    with quiet_transformers(), no_init_weights(), few_parts(parts):
        if device == "meta" and table:
            small = make_config(known, one_layer(config), max_tensors)
            check_runs(check_builds(known.model, small))
        try:
            with torch.device(device):
                model: nn.Module = known.model(settings)
        except ArtifactError:
            raise
        except Exception as error:
            reason = short(error, 300)
            raise ArtifactError(f"{CONFIG_FILE}: {name} refuses it ({reason}).") from error
        if device == "meta" and not table:
            check_runs(model.eval(), usual=lambda: known.model(known.config()))
    return model
