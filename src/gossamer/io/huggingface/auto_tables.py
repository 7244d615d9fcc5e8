# SPDX-License-Identifier: Apache-2.0
"""The classes that a file can ask for: those of transformers' own auto tables, and no others.

`AutoModel` and its like keep tables from `model_type` to the name of a class. They are read as
data: a name that is in none of them is refused, so nothing in a file can name code. Classes that
fetch things on their own, or that are made by another package, are left out.
"""

import re
import sys
from dataclasses import dataclass
from functools import cache
from inspect import getsource
from typing import Any

from gossamer.errors import ArtifactError, InputError

# Their weights or their code come from another package or from the network.
_ELSEWHERE = ("timm",)
_READ_FROM_KWARGS = re.compile(r"kwargs\.(?:pop|get)\(\s*[\"']([a-z]\w*)[\"']")
_READ_FROM_CONFIG = re.compile(r"getattr\(\s*(?:self\.)?config,\s*[\"']([a-z]\w*)[\"']")


@dataclass(frozen=True)
class KnownClass:
    """A class of transformers that a file asked for.

    Attributes:
        model: the class.
        config: the class of its configuration.
        model_type: what config.json calls it.
    """

    model: Any
    config: Any
    model_type: str


def import_transformers() -> Any:
    """The transformers package, or an error that names the extra."""
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            "transformers is not installed, but this model needs it: pip install 'gossamer[hf]'."
        ) from error
    return transformers


@cache
def auto_classes() -> dict[str, frozenset[str]]:
    """Class name to the values of `model_type` that go with it, from all auto tables."""
    import_transformers()
    from transformers.models.auto import modeling_auto

    found: dict[str, set[str]] = {}
    for table, rows in vars(modeling_auto).items():
        if not (table.startswith("MODEL_") and table.endswith("_MAPPING_NAMES")):
            continue
        for model_type, names in rows.items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, set()).add(model_type)
    return {name: frozenset(types) for name, types in found.items()}


def known_class(name: str, content: dict[str, Any], where: str) -> KnownClass:
    """The class `name` of the auto tables, if `content`, a config.json, is of its family too.

    Raises:
        ArtifactError: the tables do not have it, or not with this `model_type`.
    """
    found = content.get("model_type")
    types = auto_classes().get(name)
    if types is None:
        advice = "Build the model yourself and pass model=."
        if content.get("auto_map"):
            advice = f"It asks for code of its own (auto_map), which is never run. {advice}"
        raise ArtifactError(
            f"{where}: {name[:80]!a} is not a known transformers class, one of the"
            f" {len(auto_classes())} in the auto tables of the installed transformers"
            f" {import_transformers().__version__}. {advice}"
        )
    if not isinstance(found, str) or found not in types:
        expected = " or ".join(map(repr, sorted(types)))
        raise ArtifactError(
            f"{where}: {name} needs model_type {expected}, config.json has {ascii(found)[:80]}."
        )
    config = config_class(found, where)
    try:
        model = getattr(import_transformers(), name)
    except Exception as error:
        reason = ascii(str(error))[1:-1][:200]
        raise ArtifactError(f"{where}: {name} cannot be imported here ({reason}).") from error
    _check_own_reader(model, name, where)
    return KnownClass(model, config, found)


def config_class(model_type: str, where: str) -> Any:
    """The configuration class of a family, from the auto table of transformers."""
    transformers = import_transformers()
    from transformers.models.auto import configuration_auto

    name = vars(configuration_auto)["CONFIG_MAPPING_NAMES"].get(model_type)
    if name is None:
        raise ArtifactError(
            f"{where}: model_type {model_type[:80]!a} is not known to the installed transformers"
            f" {transformers.__version__}."
        )
    check_family(model_type, where)
    return getattr(transformers, name)


def check_family(model_type: str, where: str) -> None:
    """Refuse a family whose models another package makes."""
    if model_type.startswith(_ELSEWHERE):
        raise ArtifactError(
            f"{where}: models of model_type {model_type!a} are made by another package, which may"
            " fetch code and weights. Build the model yourself and pass model=."
        )


@cache
def undeclared_fields(config: Any, model: Any) -> frozenset[str]:
    """Fields that the classes read although the configuration does not declare them.

    Files written by older versions have them, such as `rotary_pct`; a model without them would
    load and compute something else.
    """
    names: set[str] = set(getattr(config, "attribute_map", {}))
    for part in config.__mro__:
        if part.__module__.startswith("transformers.models.") or "Rotary" in part.__name__:
            names.update(_READ_FROM_KWARGS.findall(_source(part)))
    if model is not None:
        names.update(_READ_FROM_CONFIG.findall(_source(sys.modules[model.__module__])))
    return frozenset(names)


def _source(part: Any) -> str:
    try:
        return getsource(part)
    except (OSError, TypeError):
        return ""


def _check_own_reader(model: Any, name: str, where: str) -> None:
    """Refuse a class that has its own way to read files, which may fetch or unpickle some."""
    base = import_transformers().PreTrainedModel
    if not issubclass(model, base):
        # A stand-in, which transformers has for a class whose requirements are not met.
        raise ArtifactError(
            f"{where}: {name} cannot be used here; it needs packages that are not installed."
        )
    own = model.__mro__[: model.__mro__.index(base)]
    if any(isinstance(vars(part).get("from_pretrained"), classmethod) for part in own):
        raise ArtifactError(
            f"{where}: {name} reads files in a way of its own, which may fetch more of them. Build"
            " the model yourself and pass model=."
        )
