# SPDX-License-Identifier: Apache-2.0
"""A decoder of transformers, packed for text generation.

Legend: R rows (outputs), K columns (inputs).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from gossamer.errors import InputError
from gossamer.ops.engines.decoder import DecoderBlock, PackedLayer, decoder_plan
from gossamer.ops.engines.decoder_session import DecoderPlan, NativeDecoder
from gossamer.ops.linear import few
from gossamer.patterns.attention.key_rules import KeyRules
from gossamer.running.decoder.features import DecoderFeatures
from gossamer.running.decoder.session import DecoderSize, TextEngine
from gossamer.running.decoder.weights import WeightPacker, joined
from gossamer.running.layers import Explanation


class DecoderEngine(TextEngine):
    """A decoder of transformers, packed for generation on the CPU: docs/reference/models.md.

    `kernels` names what the layers run on: the layout with the fewest bytes, or a plug-in that
    gives a `PackedWeight` and measures faster for one token.

    Weights are copies: the model may be freed or changed afterwards. Sessions hold keys and values;
    the engine itself can be used from several threads.

    Args:
        model: with masked, compact or dense layers.
        dtype: what weights of the layers are stored in: "fp32", "bf16", "int8" or "int4". The last
            two run in integers where the CPU can, activations quantised to 8 bits in every call.
            int4 layers whose weights are on a grid with offsets, as those of a Q4_1 file, lose
            nothing.
        head_dtype: the same for embeddings and head; None = `dtype`, but not below int8.
        context: the most tokens of a sequence; None = what the model was made for.
        scale_group: kept int4 values that share a scale.
        keys: which keys a token attends to and what they are stored in; None = all, in fp32. With a
            window, the context may be longer than the model's positions.
        active_neurons: hold the feed-forward parts a second time, neuron by neuron, and compute
            those of one token from the neurons that are active: for models with ReLU (`relufy`).
            Rows are of `dtype`; int4 has int8 ones.
        prompt_copy: for fp32 and bf16: hold pruned layers a second time in the layout that is
            faster for prompts.
        keep: gets everything that was packed, to be stored.
    """

    def __init__(  # noqa: PLR0913  (one argument per choice of a user)
        self,
        model: nn.Module,
        dtype: str = "int8",
        *,
        head_dtype: str | None = None,
        context: int | None = None,
        scale_group: int = 32,
        prompt_copy: bool = True,
        keys: KeyRules | None = None,
        keep: Callable[[DecoderPlan], None] | None = None,
        active_neurons: bool = False,
    ) -> None:
        for name in (dtype, dtype if head_dtype is None else head_dtype):
            if name not in few.DTYPES:
                raise InputError(
                    f"decoder: dtype must be one of {', '.join(few.DTYPES)}, got {name!r}."
                )
        keys = keys or KeyRules()
        features = DecoderFeatures(model, context, keys.reach)
        self.dtype = dtype
        self.head_dtype = head_dtype or ("int8" if dtype == "int4" else dtype)
        pack = WeightPacker(dtype, scale_group, prompt_copy)
        pack_table = WeightPacker(self.head_dtype, scale_group, prompt_copy=False, reads_rows=True)
        chain = features.facts.chain
        outside: list[Any] = [model.get_submodule(n) for n in (chain.front[0], *chain.back)]
        embedding, norm, lm_head = outside
        table = head = pack_table(joined([features.part(chain.front[0])], chain.front[0]))
        if lm_head.weight is not embedding.weight or lm_head.bias is not None:
            head = pack_table(joined([features.part(chain.back[-1])], chain.back[-1]))
        blocks = [_block(features, number, pack) for number in range(len(features.layers))]
        if active_neurons:
            rows = "int8" if dtype == "int4" else dtype
            blocks = [replace(b, neurons=features.neurons(n, rows)) for n, b in enumerate(blocks)]
        plan = decoder_plan(
            features.shape,
            table.few,
            blocks,
            features.norm(norm),
            head,
            features.rotations,
            features.positions,
            features.rules,
        )
        linears = [linear for block in blocks for linear in block.linears]
        tables = [table] if head is table else [table, head]
        # Every product of a token, in the order in which it runs.
        self._products = [*linears, head]
        size = DecoderSize(
            weights=sum(linear.few.shape[0] * linear.few.shape[1] for linear in linears),
            kept=sum(linear.few.nnz for linear in linears),
            layer_bytes=sum(linear.nbytes for linear in linears),
            active_bytes=sum(block.token_bytes for block in blocks),
            head_bytes=head.nbytes,
            resident_bytes=sum(part.resident_bytes for part in (*linears, *tables))
            + sum(block.neurons.nbytes for block in blocks if block.neurons is not None),
        )
        kernels = sorted({linear.few.kernel for linear in linears})
        super().__init__(NativeDecoder(plan), keys, size, kernels)
        if keep is not None:
            keep(plan)
        self._rows = Explanation([*pack_table.rows, *pack.rows])

    def explained(self) -> Explanation:
        """What runs each weight for one token, and why: what `gossamer.explain(engine)` gives."""
        return self._rows


def _block(features: DecoderFeatures, number: int, pack: WeightPacker) -> DecoderBlock:
    parts, layer = features.facts.block, features.layers[number]
    where = f"{features.facts.chain.layers}.{number}"

    def packed(place: str, *names: str) -> PackedLayer:
        return pack(joined([features.part(f"{where}.{n}") for n in names], f"{where}.{place}"))

    mixture = features.mixtures[number]
    inside = parts.down.rpartition(".")[0] or " + ".join(parts.expansions)
    return DecoderBlock(
        qkv=packed(parts.attention, *parts.projections),
        out=packed(parts.output, parts.output),
        gate_up=packed(inside, *parts.expansions) if mixture is None else None,
        down=packed(parts.down, parts.down) if mixture is None else None,
        experts=None if mixture is None else mixture.packed(pack),
        norms=features.norms(layer),
        rotation=features.rotation(layer),
        window=features.windows[number],
        scale=features.scales[number],
        cut=features.cut(number),
    )
