# SPDX-License-Identifier: Apache-2.0
"""A small GPT in plain modules: the language model that training is tested and measured on.

Legend: B batch, T tokens, D width, H heads, V vocabulary.
"""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from gossamer.ops.attention import attention
from gossamer.zoo.arguments import TokenModel, check_size

# First weights: embeddings and head as GPT-2; matrices of blocks by their inputs, which gives 0.02
# at GPT-2's width of 768. A narrow model that begins with 0.02 learns late: at width 48 it was 0.14
# bits behind after 1000 steps.
_TABLE_STD, _GAIN = 0.02, 0.55


class GPTBlock(nn.Module):
    """Pre-norm causal self-attention and feed-forward, each with a residual connection.

    Attributes:
        gossamer_pattern: what attention is limited to; `gossamer.nn.attention.replace_attention`
            sets it.
    """

    gossamer_pattern = "full"

    def __init__(self, width: int, num_heads: int, ffn_width: int) -> None:
        super().__init__()
        self.head_dim = width // num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.ffn_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, ffn_width)
        self.act = nn.GELU()  # exact: torch computes it twice as fast as the tanh form on a CPU
        self.down = nn.Linear(ffn_width, width)

    def attend(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """The tokens [B, T, D] after attention, residual connection included."""
        qkv = self.qkv(self.attention_norm(x_BTD)).unflatten(-1, (3, -1, self.head_dim))
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if self.gossamer_pattern == "full":
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            mixed = attention(query, key, value, self.gossamer_pattern, causal=True)
        return x_BTD + self.output(mixed.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """The tokens [B, T, D] after one block."""
        x_BTD = self.attend(x_BTD)
        result: torch.Tensor = x_BTD + self.down(self.act(self.up(self.ffn_norm(x_BTD))))
        return result


class GPT(TokenModel):
    """Token and position embeddings, causal blocks, a final norm and the language model `head`.

    Blocks hold 12 width^2 weights each: width 512 with 8 layers is 25 million, width 1024 with 24
    layers is 302 million.

    Args:
        vocab_size: V; 256 for bytes.
        width: D.
        num_heads: H, divides the width.
        num_layers: blocks.
        context: most tokens in a sequence.
        ffn_width: inner width of the feed-forward; 0 means four times the width.
        tied: the head uses the weight of the token embedding.
        recompute: blocks keep their input only and run again in backward (activation
            checkpointing): less memory for a third more arithmetic. A setting of the run, which may
            be changed at any time and is not recorded with the architecture.
    """

    limit = "context"
    context: int

    def __init__(
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
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            width=width,
            num_heads=num_heads,
            num_layers=num_layers,
            context=context,
            ffn_width=check_size("GPT: ffn_width", ffn_width, low=0) or 4 * width,
        )
        self.tied = bool(tied)
        self.recompute = bool(recompute)
        self.blocks = nn.ModuleList(self._block(number) for number in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        if self.tied:
            self.head.weight = self.tokens.weight
        # What is added to the residual stream is scaled by its depth.
        for name, param in self.named_parameters():
            if param.ndim >= 2:
                std = _GAIN / param.shape[-1] ** 0.5 if name.startswith("blocks.") else _TABLE_STD
                adds = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(param, std=std / (2 * self.num_layers) ** 0.5 if adds else std)
            elif name.endswith("bias"):
                nn.init.zeros_(param)

    def _block(self, number: int) -> GPTBlock:
        return GPTBlock(self.width, self.num_heads, self.ffn_width)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, V] of the token that follows each of the int64 ids [B, T].

        Hidden states [B, T, D] in their place are taken as embedded already: that is what a stage
        of a pipeline is given.
        """
        x_BTD = self.embed(ids_BT)
        again = self.recompute and torch.is_grad_enabled()
        for block in self.blocks:
            x_BTD = checkpoint(block, x_BTD, use_reentrant=False) if again else block(x_BTD)
        logits: torch.Tensor = self.head(self.norm(x_BTD))
        return logits
