# SPDX-License-Identifier: Apache-2.0
"""Every error gossamer raises for a user's mistake, a bad file or a missing resource.

Each message says what is wrong and where, what was expected, what was found and what to do next.
`exit_code` is what the command line returns for the class.
"""


class GossamerError(Exception):
    """Base of all errors that are not bugs of gossamer."""

    exit_code = 2


class InputError(GossamerError, ValueError):
    """An argument has a value, type, shape or device that cannot be used."""


class PatternError(InputError):
    """A pattern cannot be parsed, does not fit a shape, or is violated by a mask."""


class TargetError(InputError):
    """A target or ignore rule names no layer, or names one that cannot be pruned."""


class RegistryError(InputError):
    """A name was looked up that nobody registered; the message holds the stub to write."""


class RecipeError(InputError):
    """A recipe is malformed."""


class ClusterError(InputError):
    """The description of a cluster is malformed."""


class FormatError(GossamerError, ValueError):
    """Arrays break the rules of their sparse format."""

    exit_code = 3


class ArtifactError(GossamerError):
    """A file or directory is missing, damaged, hostile or of an unknown version."""

    exit_code = 3


class ResourceError(GossamerError):
    """Disk or memory does not suffice."""

    exit_code = 4


class KernelError(GossamerError, RuntimeError):
    """A native kernel cannot run here or with these tensors."""


class KernelMissing(KernelError):
    """No kernel is registered for an operation on a format; the message holds the stub."""


class DenseFallback(KernelError):
    """Work fell back to dense under `gossamer.strict()`."""


class MaskDrift(GossamerError, RuntimeError):
    """A mask is not what the stage that made it said: a fault of gossamer or of another tool."""


class WeightIsCompact(GossamerError, AttributeError):
    """A compact layer's `.weight` was computed with; its kept values are the Parameter."""


class WeightIsPacked(GossamerError, AttributeError):
    """A compiled layer's `.weight` was computed with; it is packed for a kernel."""


class DistributedError(GossamerError, RuntimeError):
    """Ranks disagree or one of them failed."""

    exit_code = 5
