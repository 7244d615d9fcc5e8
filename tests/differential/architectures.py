"""Random models made of stock modules: small, odd-sized, wired as people wire them.

`draw(random)` gives a `Drawn`: a module in eval mode and the inputs to call it with. Everything is
decided by the generator that is passed in, so a case is its seed.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Hardswish)
# Edge sizes first; the others leave remainders in every block size of the kernels.
WIDTHS = (1, 2, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 96, 130)
ROWS = (1, 1, 2, 3, 5, 16, 17, 64, 65)


@dataclass
class Drawn:
    """A model, what to call it with, and the layers that an oddity was hung on."""

    name: str
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    touched: list[str] = field(default_factory=list)


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Branches(nn.Module):
    """Two branches of one input, joined."""

    def __init__(self, left: nn.Module, right: nn.Module, how: str) -> None:
        super().__init__()
        self.left, self.right, self.how = left, right, how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.left(x), self.right(x)
        if self.how == "cat":
            return torch.cat([left, right], dim=1 if x.ndim == 4 else -1)
        return left * right if self.how == "gate" else left + right


class UsedTwice(nn.Module):
    """One layer at two places of the forward."""

    def __init__(self, layer: nn.Module, between: nn.Module) -> None:
        super().__init__()
        self.layer, self.between = layer, between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.between(self.layer(x)))


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width, bias), nn.Linear(width, width, bias)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class ReadsWeight(nn.Module):
    """A model that multiplies with a layer's weight itself."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(columns, rows), nn.Linear(rows, rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(nn.functional.linear(x, self.a.weight, self.a.bias))


class AsksDtype(nn.Module):
    """A model that looks at a weight's dtype and shape, as T5 and the ViTs do."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.wo, self.after = nn.Linear(columns, rows), nn.Linear(rows, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.wo.weight.dtype)
        if self.wo.weight.shape[1] != x.shape[-1]:
            raise ValueError("wrong width")
        return self.after(self.wo(x))


class Tokens(nn.Module):
    """Embedding, a body, and a head that may be tied to the embedding."""

    def __init__(self, words: int, width: int, body: nn.Module, tied: bool) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(words, width), body
        self.out = nn.Linear(width, words, bias=False)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.body(self.embedding(ids)))


class Attends(nn.Module):
    """nn.MultiheadAttention between two Linears."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(width, width), nn.Linear(width, width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        return self.after(self.attention(x, x, x, need_weights=False)[0])


class Recurrent(nn.Module):
    """LSTM or GRU, then a Linear."""

    def __init__(self, cell: type[nn.Module], width: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.after = cell(width, hidden, batch_first=True), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.cell(x)[0])


def _width(draw: random.Random) -> int:
    return draw.choice(WIDTHS)


def _linear_block(draw: random.Random, columns: int, rows: int) -> list[nn.Module]:
    block: list[nn.Module] = [nn.Linear(columns, rows, bias=draw.random() < 0.7)]
    if draw.random() < 0.3:
        block.append(nn.LayerNorm(rows))
    block.append(draw.choice(ACTIVATIONS)())
    if draw.random() < 0.2:
        block.append(nn.Dropout(0.5))
    return block


def _square(draw: random.Random, width: int) -> nn.Module:
    inner = _width(draw)
    up = _linear_block(draw, width, inner)
    return nn.Sequential(*up, nn.Linear(inner, width, bias=draw.random() < 0.7))


def _body(draw: random.Random, width: int) -> nn.Module:
    """Width in, the same width out."""
    kind = draw.randrange(7)
    if kind == 0:
        return Residual(_square(draw, width))
    if kind == 1:
        return Branches(_square(draw, width), _square(draw, width), draw.choice(("add", "gate")))
    if kind == 2:
        return UsedTwice(nn.Linear(width, width), draw.choice(ACTIVATIONS)())
    if kind == 3:
        return Tied(width, draw.random() < 0.5)
    return _square(draw, width)


def _rows_input(draw: random.Random, width: int) -> torch.Tensor:
    leading = draw.choice(((draw.choice(ROWS),), (2, draw.choice(ROWS)), (1, 2, 3), (0,), ()))
    return torch.randn(*leading, width)


def mlp(draw: random.Random) -> Drawn:
    """Linears, norms, activations, residuals, shared and tied layers."""
    width = first = _width(draw)
    layers: list[nn.Module] = []
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.5:
            rows = _width(draw)
            layers += _linear_block(draw, width, rows)
            width = rows
        else:
            layers.append(_body(draw, width))
    return Drawn("mlp", nn.Sequential(*layers), (_rows_input(draw, first),))


def single(draw: random.Random) -> Drawn:
    """A model that is itself one layer, wrapped once."""
    columns, rows = _width(draw), _width(draw)
    model = nn.Sequential(nn.Linear(columns, rows, bias=draw.random() < 0.5))
    return Drawn("single", model, (_rows_input(draw, columns),))


def reader(draw: random.Random) -> Drawn:
    """Models that look at a layer's weight."""
    columns, rows = _width(draw), _width(draw)
    model = draw.choice((ReadsWeight, AsksDtype))(columns, rows)
    return Drawn(type(model).__name__, model, (torch.randn(draw.choice(ROWS), columns),))


def tokens(draw: random.Random) -> Drawn:
    """Ids in, logits out."""
    width, words = _width(draw), draw.choice((3, 20, 65))
    model = Tokens(words, width, _body(draw, width), draw.random() < 0.5)
    return Drawn("tokens", model, (torch.randint(words, (draw.choice((1, 2)), 5)),))


def attention(draw: random.Random) -> Drawn:
    """nn.MultiheadAttention and nn.TransformerEncoder."""
    heads = draw.choice((1, 2, 4))
    width = heads * draw.choice((4, 8, 12))
    if draw.random() < 0.4:
        model: nn.Module = Attends(width, heads)
    else:
        layer = nn.TransformerEncoderLayer(
            width,
            heads,
            _width(draw),
            activation=draw.choice(("relu", "gelu")),
            norm_first=draw.random() < 0.5,
            batch_first=True,
        )
        model = nn.TransformerEncoder(layer, draw.randint(1, 2), enable_nested_tensor=False)
    x = torch.randn(draw.choice((1, 2)), draw.choice((1, 5, 17)), width)
    return Drawn("attention", model, (x,))


def recurrent(draw: random.Random) -> Drawn:
    """Weights that stay dense beside a Linear that does not."""
    width, hidden = draw.choice((3, 8, 17)), draw.choice((4, 16))
    model = Recurrent(draw.choice((nn.LSTM, nn.GRU)), width, hidden)
    return Drawn("recurrent", model, (torch.randn(2, 4, width),))


def _conv(draw: random.Random, channels: int, out: int, same: bool) -> nn.Conv2d:
    kernel = draw.choice((1, 1, 3, 3, (1, 3), 5))
    size = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    dilation = draw.choice((1, 1, 1, 2))
    padding = tuple(dilation * (k // 2) for k in size)
    groups = draw.choice((1, 1, 1, 2)) if channels % 2 == 0 and out % 2 == 0 else 1
    # A padding mode that wraps needs an image larger than its padding; images here are.
    return nn.Conv2d(
        channels,
        out,
        kernel,
        stride=1 if same else draw.choice((1, 1, 2)),
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw.random() < 0.6,
        padding_mode=draw.choice(("zeros", "zeros", "zeros", "reflect", "circular")),
    )


def _trained_norm(channels: int) -> nn.BatchNorm2d:
    """A batch norm whose statistics and scales are not those of a fresh one."""
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.weight.uniform_(0.5, 2)
        norm.bias.normal_()
    return norm


def _conv_block(draw: random.Random, channels: int, out: int, same: bool) -> list[nn.Module]:
    block: list[nn.Module] = [_conv(draw, channels, out, same)]
    if draw.random() < 0.6:
        block.append(_trained_norm(out))
    if draw.random() < 0.7:
        block.append(draw.choice((nn.ReLU, nn.SiLU))())
    return block


def images(draw: random.Random) -> Drawn:
    """Convolutions with norms, strides, groups, residuals, pooling and a head."""
    channels = first = draw.choice((1, 3, 4, 16))
    layers: list[nn.Module] = []
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.4:
            inner = nn.Sequential(*_conv_block(draw, channels, channels, same=True))
            layers.append(Residual(inner))
            if draw.random() < 0.5:
                layers.append(nn.ReLU())
        else:
            out = draw.choice((1, 4, 8, 16, 24))
            layers += _conv_block(draw, channels, out, same=False)
            channels = out
    if draw.random() < 0.5:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5)]
    size = draw.choice(((8, 8), (9, 11), (16, 16), (17, 12)))
    x = torch.randn(draw.choice((1, 2, 3)), first, *size)
    return Drawn("images", nn.Sequential(*layers), (x,))


def signals(draw: random.Random) -> Drawn:
    """Layers of kinds that are not pruned, between Linears that are."""
    width = draw.choice((4, 8, 16))
    inner = draw.choice(
        (nn.Conv1d(3, 3, 3, padding=1), nn.ConvTranspose1d(3, 3, 3, padding=1), nn.GroupNorm(1, 3))
    )
    model = nn.Sequential(nn.Linear(width, width), inner, nn.ReLU(), nn.Linear(width, 7))
    return Drawn("signals", model, (torch.randn(2, 3, width),))


KINDS: tuple[Callable[[random.Random], Drawn], ...] = (
    mlp,
    mlp,
    mlp,
    single,
    reader,
    tokens,
    attention,
    recurrent,
    images,
    images,
    images,
    signals,
)


def draw_model(draw: random.Random) -> Drawn:
    """One model of any kind, in eval mode."""
    drawn = draw.choice(KINDS)(draw)
    drawn.model.eval()
    return drawn
