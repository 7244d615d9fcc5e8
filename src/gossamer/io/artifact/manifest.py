# SPDX-License-Identifier: Apache-2.0
"""The schema of `manifest.json`: everything needed to rebuild a model, as data.

Nothing in it names code. Architectures, patterns, formats and dtypes are looked up in closed
tables; a name that is not there is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from gossamer.io.safe_files import MAX_DIM, MAX_DIMS
from gossamer.io.safe_files.checks import FileName, Name
from gossamer.io.safe_files.manifests import FileEntry, Sha256, SignedData
from gossamer.nn.layers import Mode
from gossamer.nn.tokens import Phase, Soft

MAX_RECIPE = 2**20
MAX_SLIM_BLOCKS = 10_000
# Arrays of one tensor in a file: `<tensor>::<array>`.
SEPARATOR = "::"
MASK_ARRAY = "mask_bits"
CODES, SCALES, OFFSETS, VALUES = "codes", "scales", "offsets", "values"
# The one array of a tensor that is stored as it is, under its own name.
WHOLE = ""


def array_key(name: str, array: str) -> str:
    """The key of one array of a tensor in a file."""
    return f"{name}{SEPARATOR}{array}" if array else name


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) != len(names):
        raise ValueError("an array is listed twice")
    return names


Count = Annotated[int, Field(ge=0, le=2**46)]
Size = Annotated[int, Field(ge=0, le=MAX_DIM)]
Shape = Annotated[tuple[Size, ...], Field(max_length=MAX_DIMS)]
ShortText = Annotated[str, Field(max_length=256)]
# The model itself has an empty one.
ModulePath = Annotated[str, Field(max_length=1024)]
Argument = bool | int | float | ShortText | tuple[int, ...] | None
ArtifactKind = Literal["packed", "dense"]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MaskEntry(_Data):
    """What a mask must be once it is unpacked."""

    pattern: ShortText
    nnz: Count
    sha256: Sha256


class CodesEntry(_Data):
    """Weights stored as small integers and scales; see `gossamer.formats.grid`.

    `shape` is that of the integers: the weight as a matrix, or the values of a sparse format. With
    `offsets` there is an array of these besides.
    """

    bits: Literal[8, 4]
    span: Annotated[int, Field(ge=1, le=MAX_DIM)]
    shape: Shape
    offsets: bool = False


class DenseEntry(_Data):
    """A tensor stored under its own name, or as `<name>::codes` and `<name>::scales`.

    With `stored`, a float32 tensor lies in the file in that type, which holds it exactly.
    """

    kind: Literal["dense"] = "dense"
    file: FileName
    shape: Shape
    dtype: ShortText
    codes: CodesEntry | None = None
    stored: Literal["bfloat16"] | None = None

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of its arrays."""
        if self.codes is None:
            return (WHOLE,)
        return (CODES, SCALES, OFFSETS) if self.codes.offsets else (CODES, SCALES)


class SparseEntry(_Data):
    """The weight of a masked or compact layer, stored as the arrays `<name>::<array>`.

    `shape` is the weight's own shape; the arrays describe it as [first, product of the rest]. With
    `codes`, the arrays `codes` and `scales` stand for `values`.
    """

    kind: Literal["sparse"] = "sparse"
    file: FileName
    shape: Shape
    dtype: ShortText
    format: ShortText
    arrays: Annotated[tuple[ShortText, ...], AfterValidator(_distinct)]
    mask: MaskEntry
    holder: Literal["masked", "compact"]
    mode: Mode | None = None
    codes: CodesEntry | None = None


class TiedEntry(_Data):
    """A tensor that is the same object as another one.

    `mask` is set where a masked layer shares the weight of a layer that is not masked; its packed
    bits are then stored as `<name>::mask_bits` in `file`.
    """

    kind: Literal["tied"] = "tied"
    to: Name
    mask: MaskEntry | None = None
    file: FileName | None = None

    @property
    def arrays(self) -> tuple[str, ...]:
        """The packed bits of its mask, if it has one."""
        return () if self.mask is None else (MASK_ARRAY,)


class TableEntry(_Data):
    """A table (embedding) that is trained or packed, stored as the arrays `<name>::<array>`.

    `shape` is [ids, width]; how the layer is called is said by the architecture. `rows` are stored
    rows: fewer than ids where a map says which. See `gossamer.nn.layers.tables`.
    """

    kind: Literal["table"] = "table"
    file: FileName
    shape: Shape
    dtype: Literal["float32"] = "float32"
    form: Literal["trained", "packed"]
    rows: Size
    bits: Literal[8, 4, 2] | None
    granularity: Literal["table", "row"] = "table"
    period: Annotated[int, Field(ge=1, le=MAX_DIM)] = 1
    half_scale: bool = False
    shadow: bool = True
    arrays: Annotated[tuple[ShortText, ...], AfterValidator(_distinct)]


TensorEntry = Annotated[
    DenseEntry | SparseEntry | TableEntry | TiedEntry, Field(discriminator="kind")
]


class TorchNode(_Data):
    """A torch.nn container or layer of the closed table; `key` is its name in its parent."""

    kind: Literal["torch"] = "torch"
    name: ShortText
    args: dict[ShortText, Argument] = {}
    children: tuple["PartNode", ...] = ()
    key: ShortText = ""


class SlimBlock(_Data):
    """How many units are left in one transformer block of a slim model."""

    heads: Size
    filters: Size


# One per block; none for a model that has the size its configuration says.
SlimBlocks = Annotated[tuple[SlimBlock, ...], Field(max_length=MAX_SLIM_BLOCKS)]


class ZooNode(_Data):
    """A model of gossamer.zoo."""

    kind: Literal["zoo"] = "zoo"
    name: ShortText
    args: dict[ShortText, Argument] = {}
    key: ShortText = ""
    slim: SlimBlocks = ()


class TokenPruning(_Data):
    """An encoder that drops tokens; see `gossamer.nn.tokens.token_pruning`."""

    phase: Phase
    soft: Soft
    temperature: Annotated[float, Field(gt=0, le=1e6)]


class TransformersNode(_Data):
    """A whole transformers model of a known family; its configuration is `config.json`."""

    kind: Literal["transformers"] = "transformers"
    name: ShortText
    slim: SlimBlocks = ()
    tokens: TokenPruning | None = None
    # Whether its Conv1D layers are Linears here, and its experts layers.
    linear: bool = False


class GraphInput(_Data):
    """One argument of a graph; null in `dims` stands for any size, null as `dims` for any rank."""

    name: ShortText
    dtype: ShortText
    dims: Annotated[tuple[int | None, ...], Field(max_length=MAX_DIMS)] | None


class GraphConstant(_Data):
    """A tensor of a graph that belongs to no layer."""

    name: ShortText
    shape: Shape
    dtype: ShortText


class GraphStep(_Data):
    """An operator of the closed table, or the layer called `layer`; values are numbered."""

    operator: ShortText
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[ShortText, Argument] = {}
    layer: ShortText | None = None
    origin: ShortText = ""


class GraphOutput(_Data):
    """One result of a graph."""

    name: ShortText
    value: int


class GraphNode(_Data):
    """A graph of operators, as imported from ONNX; `key` of a layer is its path."""

    kind: Literal["graph"] = "graph"
    inputs: tuple[GraphInput, ...]
    constants: tuple[GraphConstant, ...]
    layers: tuple[TorchNode, ...]
    steps: tuple[GraphStep, ...]
    outputs: tuple[GraphOutput, ...]


class AttentionEntry(_Data):
    """What one attention layer attends to; see `gossamer.nn.attention.AttentionState`."""

    pattern: Annotated[str, Field(max_length=4096)]
    causal: bool = False
    global_tokens: Size = 0
    alibi: bool = False
    softcap: Annotated[float, Field(gt=0, le=1e6)] | None = None


class ChannelsEntry(_Data):
    """Sizes of a layer that lost channels; see `gossamer.nn.surgery.channels.LayerSizes`."""

    outputs: Size
    inputs: Size = 0
    before: Size = 0


PartNode = Annotated[TorchNode | ZooNode, Field(discriminator="kind")]
ArchitectureNode = Annotated[
    TorchNode | ZooNode | TransformersNode | GraphNode, Field(discriminator="kind")
]


class Manifest(SignedData):
    """Everything about an artifact except the bytes of its tensors."""

    ADVICE = "Upgrade gossamer, or save the model again."

    format: Literal["gossamer-artifact"] = "gossamer-artifact"
    version: Literal[1] = 1
    producer: ShortText
    kind: ArtifactKind
    files: dict[FileName, FileEntry]
    tensors: dict[Name, TensorEntry]
    shared_modules: dict[Name, Name] = Field(default_factory=dict)
    architecture: ArchitectureNode | None = None
    recipe: Annotated[str, Field(max_length=MAX_RECIPE)] | None = None
    # By the path of the layer; files without patterns do not have it.
    attention: dict[ModulePath, AttentionEntry] = Field(default_factory=dict)
    # Of a slim convolutional network: what its class, or the user's model, would have larger.
    channels: dict[ModulePath, ChannelsEntry] = Field(default_factory=dict)
    # The same of what relufication put there: see `gossamer.nn.relufication.states`.
    relus: dict[ModulePath, Literal["shift", "threshold", "after"]] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _without_empty(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = write(self)
        for name in ("attention", "channels", "relus"):
            if not getattr(self, name):
                del content[name]
        return content
