# SPDX-License-Identifier: Apache-2.0
"""The questions that every model family answers, each with a record or with a reason why not.

Names of modules are dotted paths. Classes are looked up by name and never imported, so that no
family needs transformers to be installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class BlockParts:
    """Where a transformer block keeps its parts; names are relative to the block.

    Attributes:
        block: module and class of the block.
        projections: layers whose rows belong to heads: query, key and value, or all in one.
        output: the layer whose columns belong to heads.
        head_dim: attribute with the rows of one head.
        expansions: layers whose rows are filters: up, or gate and up.
        down: the layer whose columns are filters.
        activation: the activation of the feed-forward part, behind the first of `expansions`.
        norms: of the attention and of the feed-forward part.
        norm_first: True if the feed-forward part adds to the sum of block input and attention,
            False if it adds to its own input; a name is an attribute of the block that says so.
        attention: module that computes the heads and has nothing to do once none is left; empty
            where the block itself computes them.
        head_counts: attributes that hold the number of query heads.
        head_widths: attributes that hold query heads times head_dim.
        segments: how many projections are stacked in each of `projections`.
        expansion_segments: how many are stacked in each of `expansions`: 2 for gate and up in one.
        whole: why its heads and filters are not cut out, nor shared by ranks; empty: they can be.
    """

    block: str
    projections: tuple[str, ...]
    output: str
    head_dim: str
    expansions: tuple[str, ...]
    down: str
    activation: str
    norms: tuple[str, str]
    norm_first: bool | str
    attention: str = ""
    head_counts: tuple[str, ...] = ()
    head_widths: tuple[str, ...] = ()
    segments: int = 1
    expansion_segments: int = 1
    whole: str = ""

    @property
    def key(self) -> str:
        """The projection that has one head per unit."""
        return self.projections[0 if self.segments > 1 else 1]

    @property
    def linears(self) -> tuple[str, ...]:
        """All layers with a weight matrix, in the order in which they run."""
        return (*self.projections, self.output, *self.expansions, self.down)


@dataclass(frozen=True)
class Chain:
    """Where a model keeps its layers, in the order in which they run.

    Attributes:
        layers: path of the list of layers; empty if the model itself is the list.
        front: modules that run before the first layer.
        back: modules that run after the last layer.
        entry: keyword under which the model takes hidden states instead of its input; empty if it
            takes them in the place of its input.
        output: attribute of the model's output that holds the tensor, the first one there is.
        keywords: what every call is given, such as not to keep keys and values.
    """

    layers: str = ""
    front: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    entry: str = ""
    output: tuple[str, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class EncoderFacts:
    """A stack of blocks that attend to all tokens, which one native call can run.

    Whether norms come first and feed-forward parts have gates is asked of `BlockParts`. Names are
    relative to the module that runs the blocks, or to a block where that is said.

    Attributes:
        plain_model: module and class of a model whose plain call is embeddings, encoder and pooler
            and nothing else; empty if there is none.
        layers: the list of the blocks.
        groups: where the entries of `layers` are no blocks, their list of them. Entries are shared:
            they take turns until the configuration's number of layers has run.
        is_model: the module that runs the blocks also embeds; the list alone is replaced then.
        front: a module that it calls before the first block.
        config: name of the configuration's class; other stacks of such blocks hide later tokens.
        scales: modules of a block that multiply what attention and feed-forward part give, and the
            name of their Parameter behind them.
        rotary: module with the frequencies by which queries and keys are turned.
        window: attribute of a block, one more than the farthest distance at which it sees, or None.
        bias: method that gives what is added to scores [1, H, T, T] of hidden states [1, T, D]; it
            depends on distances only.
        bias_table: the module that it reads.
    """

    plain_model: str = ""
    layers: str = "layer"
    groups: str = ""
    is_model: bool = False
    front: str = ""
    config: str = ""
    scales: tuple[str, ...] = ()
    rotary: str = ""
    window: str = ""
    bias: str = ""
    bias_table: str = ""


@dataclass(frozen=True)
class ExpertFacts:
    """Where a block keeps a mixture of experts; the weights of a token's experts are probabilities.

    Attributes:
        router: module with a `weight`, `num_experts` and `top_k`.
        experts: module with the weights of all experts.
        normalised: attribute that says whether the weights of a token's experts are made to add up
            to 1; empty: they always are.
        shared: module of an expert that sees all tokens; empty: there is none.
        shared_parts: its layers: gate, up, down.
        shared_gate: layer whose sigmoid is the factor of that expert; empty: the factor is 1.
    """

    router: str
    experts: str
    normalised: str = ""
    shared: str = ""
    shared_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared_gate: str = ""


@dataclass(frozen=True)
class DecoderFacts:
    """Which switches of the native decoder a family needs; without any, it is a Llama.

    An attribute is a dotted path from the block, or from the model where that is said. An empty one
    means that the family has no such thing.

    Attributes:
        model: name of the class that gives logits.
        chain: of that class: the first of its `front` is the table of tokens, its `back` are the
            last norm and the head.
        block: the parts of its layers.
        scale: attribute with the factor of the scores.
        norm: "rms", "rms + 1" if a weight is the distance from 1, or "layer".
        norms_in: norms of what attention and feed-forward part read; None: those of `block`.
        norms_out: norms of what they give, before it is added.
        head_norms: norms of queries and keys, of each head or of all as one.
        rotary: module of the model that holds the frequencies of the rotation.
        rotary_by_type: attribute of a layer with the kind of frequencies that it uses.
        rotates: attribute that says whether a layer rotates; empty: all do.
        positions: module of the model with learned positions.
        window: attribute with the number of positions that a layer attends to.
        window_in_some: layers without that attribute attend to all positions.
        score_cap: attribute with the soft cap of the scores.
        parallel: attribute that says whether attention and feed-forward part read the same.
        interleaved: rows of the one projection are query, key and value of each head in turn.
        residual_scale: attribute with the factor of what is added.
        embedding_scale: attribute of the model with the factor of the embeddings.
        logits_divisor: attribute of the model.
        logits_cap: attribute of the model with the soft cap of the logits.
        requires: attributes of the model, and whether they must be set.
        experts: of blocks that have them instead of the feed-forward part of `block`.
        streams: `streamed.py` knows all that its modules compute.
    """

    model: str
    chain: Chain
    block: BlockParts
    scale: str = "self_attn.scaling"
    norm: Literal["rms", "rms + 1", "layer"] = "rms"
    norms_in: tuple[str, ...] | None = None
    norms_out: tuple[str, ...] = ()
    head_norms: tuple[str, ...] = ()
    rotary: str = ""
    rotary_by_type: str = ""
    rotates: str = ""
    positions: str = ""
    window: str = ""
    window_in_some: bool = False
    score_cap: str = ""
    parallel: str = ""
    interleaved: bool = False
    residual_scale: str = ""
    embedding_scale: str = ""
    logits_divisor: str = ""
    logits_cap: str = ""
    requires: tuple[tuple[str, bool], ...] = ()
    experts: ExpertFacts | None = None
    streams: bool = False


@dataclass(frozen=True)
class TokenFacts:
    """What dropping tokens between the layers of an encoder needs to know.

    Attributes:
        uncalled: last names of modules that are not called any more once tokens can be dropped.
    """

    uncalled: tuple[str, ...]


@dataclass(frozen=True)
class PositionFacts:
    """How tokens are numbered.

    Attributes:
        after_padding: numbers start behind the number of the padding token, not at 0.
    """

    after_padding: bool = False


@dataclass(frozen=True)
class ClassNames:
    """Classes of transformers that more is known about; files may ask for others, too.

    Attributes:
        model_type: what config.json calls the family.
        prefix: how the names of its classes begin, that of its configuration included.
        heads: how they end.
        activation: field of the configuration that names the activation.
        config: name of the configuration's class; empty if it begins like the others.
    """

    model_type: str
    prefix: str
    heads: tuple[str, ...]
    activation: str
    config: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all its classes."""
        return tuple(self.prefix + head for head in self.heads)


# Of a block with gate and up, and with projections of their own.
GGUF_LINEARS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
# Where all projections are one matrix, and nothing is gated or gate and up are one, too.
GGUF_FUSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class GgufNames:
    """How a gguf file of the family names things.

    Attributes:
        architecture: of the file; settings begin with it.
        model: name of the class that the file becomes; one of the family's chains.
        norms: of a block, in the order of `BlockParts.norms`.
        linears: of a block, in the order of `BlockParts.linears`.
        front: in the order of the chain's `front`.
        back: in the order of the chain's `back`.
        more: further tensors of a block -> its modules.
        rows: "pairs" if rows of queries and keys are stored as pairs that rotate, "stacked" if one
            projection has all queries before all keys, and torch has each head in turn.
        settings: fields of the configuration -> settings of the file, where it has them.
        renamed: what the configuration calls a field otherwise than Llama's; "eps" for norms.
        fixed: fields that no file holds.
        partial: heads may rotate in some of their columns.
        long_rope: files may hold factors of frequencies for short and long texts.
        local_theta: base of the frequencies of local layers, which no file holds.
        wide_scale_at: blocks of the one size whose scores are scaled by width / heads.
    """

    architecture: str
    model: str
    norms: tuple[str, ...] = ("attn_norm", "ffn_norm")
    linears: tuple[str, ...] = GGUF_LINEARS
    front: tuple[str, ...] = ("token_embd",)
    back: tuple[str, ...] = ("output_norm", "output")
    more: Mapping[str, str] = field(default_factory=dict)
    rows: Literal["", "pairs", "stacked"] = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=lambda: {"eps": "rms_norm_eps"})
    fixed: Mapping[str, Any] = field(default_factory=lambda: {"hidden_act": "silu"})
    partial: bool = False
    long_rope: bool = False
    local_theta: float | None = None
    wide_scale_at: int = 0


Role = Literal[
    "table", "embedding", "patches", "norm", "last norm", "head norm", "query norm", "key norm",
    "distances", "inner", "joint", "output", "expansion", "down", "head", "logits", "classifier",
    "pair classifier",
]  # fmt: skip


@dataclass(frozen=True)
class GrowthFacts:
    """How a model becomes larger: settings that hold its sizes, and what lies outside its blocks.

    Settings are fields of the configuration, or arguments of a zoo model. One that is not set
    follows from the others and is left alone.

    Attributes:
        width: features of the residual stream.
        heads: query heads.
        ffn: inner features of the feed-forward part.
        layers: blocks; empty if they are shared, so that their number is no size of the model.
        vocabulary: tokens that are known; empty for images.
        kv_heads: key and value heads where they may be fewer; empty if they are as many.
        head_dim: rows of one head; empty if that follows from width and heads.
        per_layer: lists with one entry per block.
        by_number: settings that, switched on, let a block compute by its number.
        roles: the end of a module's name -> what it is. "table": embedding of tokens; "embedding":
            any other; "patches": from pixels to the stream; "norm"; "last norm": directly before
            the head of a language model; "inner": from the stream to the stream; "joint": queries,
            keys and values in one, with its "output"; "expansion" and "down": a feed-forward part;
            "head": from the stream to the vocabulary; "logits": a bias of the head that is a
            module's own; "classifier": from the stream to classes; "pair classifier": from two
            vectors of the stream; "distances": a table with a column for every head.
        inside: modules of a block that its `BlockParts` does not name -> what they are: "norm";
            "head norm": of each head by itself; "query norm", "key norm": of all heads as one.
        norms_out: norms of what the parts of a block give. A new block adds nothing while their
            weights give nothing.
        around_one: weights of norms are distances from 1.
        embedding_scale: attribute of the table of tokens that holds the root of the width, which
            multiplies what it gives.
        rows: of a projection that is several in one: "" if these are of one size; "in turn": query,
            key and value of each head; "unequal": all queries, then fewer keys and values.
    """

    width: tuple[str, ...]
    heads: str
    ffn: str
    layers: str
    vocabulary: str
    roles: Mapping[str, Role]
    kv_heads: str = ""
    head_dim: str = ""
    per_layer: tuple[str, ...] = ()
    by_number: tuple[str, ...] = ()
    inside: Mapping[str, Role] = field(default_factory=dict)
    norms_out: tuple[str, ...] = ()
    around_one: bool = False
    embedding_scale: str = ""
    rows: Literal["", "in turn", "unequal"] = ""


@dataclass(frozen=True)
class MixtureFacts:
    """Classes whose layers are those of a family, with experts for the feed-forward part.

    Paths are relative to a block of the family.

    Attributes:
        module: where its classes are.
        prefix: how the names of its classes begin, that of its configuration included; a zoo model
            has no configuration, and this is its whole name.
        count: setting that holds the number of experts.
        width: setting that holds the inner features of one expert.
        up: the layer of all experts before the activation, gate rows first where it is gated.
        down: the one behind it.
        router: module whose weight has a row for each expert.
        top_k: setting that holds how many experts a token has.
        shared: the feed-forward part that every token has besides; empty if there is none.
        shared_gate: the layer whose sigmoid it is multiplied with.
        shared_width: setting that holds its inner features.
        fixed: settings that it always has.
        needs: settings that the dense model must have.
    """

    module: str
    prefix: str
    count: str
    width: str
    up: str = "mlp.experts.gate_up_proj"
    down: str = "mlp.experts.down_proj"
    router: str = "mlp.gate"
    top_k: str = "num_experts_per_tok"
    shared: str = ""
    shared_gate: str = ""
    shared_width: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """One model family. Where it has no answer, a text says why; the usual reasons are defaults.

    Attributes:
        name: what people call it.
        block: where a block keeps its parts: slimming, relufication, tensor parallelism.
        encoder: whether the native encoder runs it.
        decoder: whether the native decoder runs it.
        tokens: whether tokens can be dropped between its layers.
        positions: how tokens are numbered.
        chains: how it is cut into stages of a pipeline, by the name of the model's class.
        classes: its classes in transformers.
        gguf: its names in gguf files.
        growth: what `gossamer.grow` needs to know.
        mixtures: classes that a dense model of it becomes when it gets experts.
    """

    name: str
    block: BlockParts | str = "it has no transformer blocks"
    encoder: EncoderFacts | str = "the native encoder runs layers that attend to all tokens"
    decoder: DecoderFacts | str = "the native decoder runs layers that hide later tokens"
    tokens: TokenFacts | str = "tokens are dropped where attention and its output are called apart"
    positions: PositionFacts | str = PositionFacts()
    chains: dict[str, Chain] | str = "it was never cut into the stages of a pipeline"
    classes: ClassNames | str = "it is not a class of transformers"
    gguf: GgufNames | str = "no reader knows its gguf files"
    growth: GrowthFacts | str = "its layers have no residual stream that could be widened"
    mixtures: tuple[MixtureFacts, ...] | str = "no class has its layers with experts"


def transformers_path(model_type: str, name: str) -> str:
    """Module and class of a model of transformers."""
    folder = model_type.replace("-", "_")
    return f"transformers.models.{folder}.modeling_{folder}.{name}"


def transformers_chain(base: str, layers: str, front: str, back: str, head: str) -> Chain:
    """The chain of a model of transformers.

    Args:
        base: path of the model without its head; empty if it is the model.
        layers: path of the list of layers in it.
        front: paths of what runs before, separated by spaces.
        back: paths of what runs after.
        head: paths of what runs after, outside of `base`.
    """
    inside = f"{base}." if base else ""
    return Chain(
        layers=inside + layers,
        front=tuple(inside + name for name in front.split()),
        back=(*(inside + name for name in back.split()), *head.split()),
        entry="inputs_embeds",
        output=("logits", "last_hidden_state"),
        keywords=(("use_cache", False),),
    )
