# SPDX-License-Identifier: Apache-2.0
"""A small GPT in which a mixture of experts stands in the place of some feed-forward parts.

Legend: B batch, T tokens, D width.
"""

import torch

from gossamer.errors import InputError
from gossamer.nn.moe import MoE
from gossamer.zoo.arguments import check_choice, check_size
from gossamer.zoo.gpt import GPT, GPTBlock

__all__ = ["SwitchBlock", "SwitchGPT"]


class SwitchBlock(GPTBlock):
    """A block of GPT with a mixture of experts; tokens without a place keep what they are.

    Args:
        width: D.
        num_heads: of attention.
        moe: the mixture.
    """

    def __init__(self, width: int, num_heads: int, moe: MoE) -> None:
        super().__init__(width, num_heads, 1)
        del self.up, self.act, self.down
        self.moe = moe

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """The tokens [B, T, D] after one block."""
        x_BTD = self.attend(x_BTD)
        result: torch.Tensor = x_BTD + self.moe(self.ffn_norm(x_BTD))
        return result


class SwitchGPT(GPT):
    """GPT with experts: arithmetic of a dense model with `top_k` feed-forwards, weights of many.

    In training add `gossamer.nn.moe.take_routing(model)[0]` to the loss; `gossamer train` does.

    Args:
        vocab_size, width, num_heads, num_layers, context, ffn_width, tied, recompute: of `GPT`;
            `ffn_width` is that of one expert.
        num_experts: of each mixture.
        top_k: experts of a token; 1 is Switch.
        every: mixtures stand in every so-many-th block; 2: in every other one, the last included.
        capacity: factor of an expert's places; 0 drops no token.
        jitter: of the router's inputs in training.
        balance: "loss", "bias" or "none".
        balance_weight: of the balance loss.
        z_weight: of the loss that keeps logits small.
    """

    capacity: float
    jitter: float
    balance_weight: float
    z_weight: float

    def __init__(  # noqa: PLR0913  (one argument per size, as an artifact names them)
        self,
        vocab_size: int,
        *,
        width: int = 128,
        num_heads: int = 4,
        num_layers: int = 4,
        context: int = 256,
        ffn_width: int = 0,
        tied: bool = False,
        recompute: bool = False,
        num_experts: int = 8,
        top_k: int = 1,
        every: int = 2,
        capacity: float = 0.0,
        jitter: float = 0.0,
        balance: str = "loss",
        balance_weight: float = 0.01,
        z_weight: float = 0.001,
    ) -> None:
        self.num_experts = check_size("SwitchGPT: num_experts", num_experts, high=65536)
        self.top_k = check_size("SwitchGPT: top_k", top_k, high=65536)
        self.every = check_size("SwitchGPT: every", every, high=1024)
        self.balance = check_choice("SwitchGPT: balance", balance, ("loss", "bias", "none"))
        given = {"capacity": capacity, "jitter": jitter}
        given |= {"balance_weight": balance_weight, "z_weight": z_weight}
        for name, value in given.items():
            if type(value) not in (int, float) or not 0 <= value < 1e6:
                raise InputError(f"SwitchGPT: {name} must be a number from 0 on, got {value!r}.")
            setattr(self, name, float(value))
        super().__init__(
            vocab_size,
            width=width,
            num_heads=num_heads,
            num_layers=num_layers,
            context=context,
            ffn_width=ffn_width,
            tied=tied,
            recompute=recompute,
        )

    def _block(self, number: int) -> GPTBlock:
        if (number + 1) % self.every:
            return super()._block(number)
        moe = MoE(
            self.width,
            self.ffn_width,
            self.num_experts,
            top_k=self.top_k,
            capacity_factor=self.capacity or None,
            balance=self.balance,  # type: ignore[arg-type]
            balance_weight=self.balance_weight,
            jitter=self.jitter,
            z_weight=self.z_weight,
        )
        return SwitchBlock(self.width, self.num_heads, moe)
