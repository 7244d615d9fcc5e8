# SPDX-License-Identifier: Apache-2.0
"""A learned growth in the manner of LiGO (arXiv 2303.00980), as a comparator.

Every weight of the larger model is a linear combination of weights of the small one: what it makes
and what it reads go through learned matrices, copies through learned shares, blocks through learned
mixtures of the old blocks. All of it begins at the exact operator of `gossamer.grow` and is trained
for a few steps on the task; then the weights are taken and the matrices are thrown away.

Legend: O made, I read, P copies of what is made, Q copies of what is read, S stacked segments.
"""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import Parameter
from torch.utils.flop_counter import FlopCounterMode

from gossamer.training.growth.growing import grown_from
from gossamer.training.growth.roles import layer_of
from gossamer.training.growth.tensors import shares


class LearnedGrowth(nn.Module):
    """Weights of the larger model as a function of a few learned matrices.

    Args:
        small: as it was before growth; stays as it is.
        larger: what `gossamer.grow` made of it.
    """

    def __init__(self, small, larger):
        super().__init__()
        self.plan = grown_from(larger)
        self.old = {name: p.detach() for name, p in small.named_parameters()}
        self.learned = nn.ParameterDict()
        self.rest = {}
        with torch.no_grad():
            for name, exact in larger.named_parameters():
                self._begin(name, exact)
                self.rest[name] = exact - self._weight(name)

    def weights(self):
        """Name -> tensor of every parameter of the larger model."""
        return {name: self._weight(name) + rest for name, rest in self.rest.items()}

    def _sources(self, name):
        """The slot inside of a block, the names of that slot in all old blocks, its new number."""
        inside = layer_of(name, self.plan.anatomy)
        if inside is None:
            return name, [name], 0
        number, slot = inside
        count = self.plan.anatomy.num_layers
        return slot, [f"{self.plan.anatomy.layers}.{old}.{slot}" for old in range(count)], number

    def _axes(self, sources):
        axes = self.plan.axes[sources[0]]
        return axes, self.plan.factors.of(axes.made), self.plan.factors.of(axes.read)

    def _turned(self, axes, tensor):
        if axes.layout == "vector":
            return tensor[:, None]
        return tensor.T if axes.layout == "transposed" else tensor

    def _key(self, *parts):
        return "/".join(map(str, parts)).replace(".", "|")

    def _begin(self, name, exact):
        slot, sources, number = self._sources(name)
        axes, made, read = self._axes(sources)
        old = self._turned(axes, self.old[sources[0]])
        segments = len(axes.segments)  # of equal shares, in the models that race here
        rows, columns = old.shape[0] // segments, old.shape[1]
        like = {"dtype": old.dtype, "device": old.device}
        # Tables are looked up: their tokens are not mixed.
        is_mixed = axes.read not in ("fixed", "vocabulary")
        if self._key(slot, "made") not in self.learned:
            size = rows if axes.made != "vocabulary" else 0
            eyes = torch.eye(size, **like).repeat(segments, made, 1, 1)
            self.learned[self._key(slot, "made")] = Parameter(eyes)
            size = columns if is_mixed else 0
            self.learned[self._key(slot, "read")] = Parameter(
                torch.eye(size, **like).repeat(read, 1, 1)
            )
            share = shares(made, read).to(**like) * self.plan.factors.made_scale(axes)
            self.learned[self._key(slot, "share")] = Parameter(share)
        mixture = torch.zeros(len(sources), **like)
        source, _ = self.plan.source_of(name)
        if source in sources and exact.any():
            mixture[sources.index(source)] = 1
        self.learned[self._key(slot, "mix", number)] = Parameter(mixture)

    def _weight(self, name):
        slot, sources, number = self._sources(name)
        axes, _, _ = self._axes(sources)
        made, read, share = (self.learned[self._key(slot, k)] for k in ("made", "read", "share"))
        mixture = self.learned[self._key(slot, "mix", number)]
        old = torch.stack([self._turned(axes, self.old[source]) for source in sources])
        mixed = torch.einsum("l,loi->oi", mixture, old).unflatten(0, (len(axes.segments), -1))
        blocks = mixed[:, None].expand(-1, share.shape[0], -1, -1)  # S P O I
        if made.numel():
            blocks = made @ blocks
        blocks = blocks[:, :, None]  # S P 1 O I
        if read.numel():
            blocks = blocks @ read.mT
        blocks = blocks * share[None, :, :, None, None]  # S P Q O I
        whole = blocks.permute(0, 1, 3, 2, 4).flatten(3, 4).flatten(0, 2)
        if axes.layout == "vector":
            return whole[:, 0]
        return whole.T if axes.layout == "transposed" else whole


def learn_growth(small, larger, loss, batches, *, rate=1e-4):
    """Train the matrices, give `larger` its weights; operations of the matrices alone.

    Args:
        small: as it was before growth.
        larger: what `gossamer.grow` made of it.
        loss: loss(model, batch), where the model is called with the weights that are learned.
        batches: one for each step.
        rate: falls linearly to 0.
    """
    learned = LearnedGrowth(small, larger)
    optimizer = torch.optim.AdamW(learned.parameters(), lr=rate, weight_decay=0.0)
    counter, flops = FlopCounterMode(display=False), 0
    for number, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = rate * (1 - number / len(batches))
        if not number:
            with counter:
                learned.weights()
            # Forward, and twice as much backward.
            flops = 3 * counter.get_total_flops()
        weights = learned.weights()
        optimizer.zero_grad()
        loss(lambda ids, now=weights: functional_call(larger, now, (ids,)), batch).backward()
        optimizer.step()
    with torch.no_grad():
        for name, tensor in learned.weights().items():
            larger.get_parameter(name).copy_(tensor)
    return flops * len(batches)
