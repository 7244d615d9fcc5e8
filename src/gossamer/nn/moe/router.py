# SPDX-License-Identifier: Apache-2.0
"""Which expert a token goes to: Switch, top-k, expert choice, balance by a loss or by a bias.

The router computes in float32 whatever the model does: a rounded logit sends tokens elsewhere.

Legend: T tokens, k experts of each, S pairs of both, E experts, D width, C capacity of an expert.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn
from torch.nn.functional import linear

from gossamer.errors import InputError
from gossamer.ops.experts import Routes

if TYPE_CHECKING:
    from typing_extensions import Self

Choice = Literal["tokens", "experts"]
Balance = Literal["loss", "bias", "none"]
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Routing:
    """What a router decided for some tokens.

    Attributes:
        routes: the way of tokens to their experts, those that found no place left out.
        weights: of every pair of token and expert, [S]; the router's gradient comes through them.
        logits: [T, E].
        wanted: tokens that each expert was chosen for, before its capacity was looked at, [E]; in
            training on several processes those of all of them.
        dropped: pairs that found no place.
    """

    routes: Routes
    weights: torch.Tensor
    logits: torch.Tensor
    wanted: torch.Tensor
    dropped: int

    def balance_loss(self) -> torch.Tensor:
        """E sum_e f_e P_e: 1 at perfect balance, up to E where all tokens go to one expert.

        f is the part of pairs that chose an expert, P its mean probability, which has a gradient.
        """
        parts_E = self.wanted.to(self.logits.dtype) / self.wanted.sum().clamp(min=1)
        probabilities_TE = self.logits.softmax(1)
        return len(parts_E) * (parts_E * probabilities_TE.mean(0)).sum()

    def z_loss(self) -> torch.Tensor:
        """The mean square of the logarithm of the sum of exponentials: keeps logits small."""
        return self.logits.logsumexp(1).square().mean()


# Pairs of each expert in this process -> [processes, E], and the number of this process.
Peers = Callable[[torch.Tensor], tuple[torch.Tensor, int]]


class Router(nn.Module):
    """Chooses experts for tokens.

    Args:
        width: D.
        num_experts: E.
        top_k: experts of a token; of expert choice, in the mean.
        choice: "tokens" choose their k best experts; "experts" choose their best tokens, so that
            all have equally many (a token may then have none: no model that predicts the next token
            from what comes later should use it).
        capacity_factor: an expert takes ceil(factor k T / E) tokens, in the order of their
            positions; the others pass it by. None: all that choose it.
        jitter: inputs are multiplied by numbers from [1 - jitter, 1 + jitter] in training.
        balance: "bias" adds a number to each expert's score that follows its load and has no
            gradient, see `follow_load`; "loss" and "none" do not.

    Attributes:
        peers: other processes that see other tokens of the same batch in training; loads and
            capacities are then those of all tokens. None: there are none.
    """

    load: torch.Tensor
    offsets: torch.Tensor
    peers: Peers | None = None

    def __init__(
        self,
        width: int,
        num_experts: int,
        *,
        top_k: int = 1,
        choice: Choice = "tokens",
        capacity_factor: float | None = None,
        jitter: float = 0.0,
        balance: Balance = "loss",
    ) -> None:
        super().__init__()
        _check(num_experts, top_k, choice, capacity_factor, jitter, balance)
        self.width, self.num_experts, self.top_k, self.choice = width, num_experts, top_k, choice
        self.capacity_factor, self.jitter, self.balance = capacity_factor, jitter, balance
        self.weight = nn.Parameter(torch.empty(num_experts, width))
        nn.init.normal_(self.weight, std=0.1 / math.sqrt(max(width, 1)))
        # Pairs since the bias last followed, and the bias; both decide the steps to come.
        held = num_experts if balance == "bias" else 0
        self.register_buffer("load", torch.zeros(held, dtype=torch.int64))
        self.register_buffer("offsets", torch.zeros(held))

    def forward(self, x_TD: torch.Tensor) -> Routing:
        """Experts, weights and what balance needs to know, for tokens [T, D]."""
        logits_TE = self._logits(x_TD)
        if self.choice == "experts":
            return self._of_experts(logits_TE)
        return self._of_tokens(logits_TE)

    def _logits(self, x_TD: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x_TD.device.type, enabled=False):
            x_TD = x_TD.to(self.weight.dtype)
            if self.training and self.jitter:
                x_TD = x_TD * torch.empty_like(x_TD).uniform_(1 - self.jitter, 1 + self.jitter)
            logits_TE = linear(x_TD, self.weight)
        if not bool(torch.isfinite(logits_TE).all()):
            own = bool(torch.isfinite(self.weight).all())
            what = "the tokens it was given hold" if own else "its weight holds"
            raise InputError(
                f"router of {self.num_experts} experts: {what} NaN or Inf, so no expert can be"
                " chosen. Go on from a checkpoint before that, with a lower learning rate."
            )
        return logits_TE

    def _of_tokens(self, logits_TE: torch.Tensor) -> Routing:
        probabilities_TE = logits_TE.softmax(1)
        scores_TE = probabilities_TE
        if self.balance == "bias":
            scores_TE = scores_TE.detach() + self.offsets
        index_Tk = scores_TE.topk(self.top_k, dim=1).indices
        weights_Tk = probabilities_TE.gather(1, index_Tk)
        if self.top_k > 1:
            # Of one expert the probability itself: else the router would have no gradient.
            weights_Tk = weights_Tk / weights_Tk.sum(1, keepdim=True)
        routes = Routes.of_choice(index_Tk, self.num_experts)
        wanted = torch.tensor(routes.counts, device=index_Tk.device)
        before, tokens = torch.zeros_like(wanted), len(logits_TE)
        if self.peers is not None and self.training:
            # Tokens of a process stand behind those of the processes before it.
            wanted_PE, own = self.peers(wanted)
            before, wanted = wanted_PE[:own].sum(0), wanted_PE.sum(0)
            tokens = int(wanted.sum()) // self.top_k
        if self.training and self.balance == "bias":
            self.load += wanted
        weights_S = routes.weights(weights_Tk)
        if self.capacity_factor is None:
            return Routing(routes, weights_S, logits_TE, wanted, 0)
        capacity = self._capacity(tokens)
        kept_S, routes = routes.within((capacity - before).clamp(min=0).tolist())
        dropped = int((wanted - capacity).clamp(min=0).sum())
        return Routing(routes, weights_S[kept_S], logits_TE, wanted, dropped)

    def _of_experts(self, logits_TE: torch.Tensor) -> Routing:
        probabilities_ET = logits_TE.softmax(1).t()
        most = min(self._capacity(len(logits_TE)), len(logits_TE))
        weights_EC, tokens_EC = probabilities_ET.topk(most, dim=1)
        # In the order of tokens, so that the order of sums does not depend on ties.
        tokens_EC, places_EC = tokens_EC.sort(dim=1)
        weights_S = weights_EC.gather(1, places_EC).flatten()
        counts = (most,) * self.num_experts
        tokens_S = tokens_EC.flatten()
        order_S = torch.arange(len(tokens_S), device=tokens_S.device)
        routes = Routes(tokens_S, order_S, counts, len(logits_TE), 0)
        wanted = torch.full((self.num_experts,), most, device=tokens_S.device)
        return Routing(routes, weights_S, logits_TE, wanted, 0)

    def _capacity(self, tokens: int) -> int:
        factor = 1.0 if self.capacity_factor is None else self.capacity_factor
        return math.ceil(factor * self.top_k * tokens / self.num_experts)

    @torch.no_grad()
    def follow_load(self, rate: float = 1e-3) -> None:
        """Move the bias of experts with too many tokens down and of others up, by `rate`.

        After every optimizer step (arXiv 2408.15664); the load since then is forgotten.
        """
        if self.balance == "bias" and bool(self.load.any()):
            load_E = self.load.to(self.offsets.dtype)
            self.offsets += rate * torch.sign(load_E.mean() - load_E)
            self.load.zero_()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Self":
        def wide(tensor: torch.Tensor) -> torch.Tensor:
            made = fn(tensor)
            return tensor.to(made.device) if made.dtype in _HALVES else made

        super()._apply(wide, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        """Its settings."""
        return (
            f"num_experts={self.num_experts}, top_k={self.top_k}, choice={self.choice},"
            f" capacity_factor={self.capacity_factor}, balance={self.balance}"
        )


def _check(
    num_experts: int,
    top_k: int,
    choice: str,
    capacity_factor: float | None,
    jitter: float,
    balance: str,
) -> None:
    faults: list[Any] = []
    if num_experts < 1:
        faults.append(f"num_experts must be at least 1, got {num_experts}")
    elif not 1 <= top_k <= num_experts:
        faults.append(f"top_k must be in [1, {num_experts}], the number of experts, got {top_k}")
    if choice not in get_args(Choice):
        faults.append(f"choice must be 'tokens' or 'experts', got {choice!r}")
    if balance not in get_args(Balance):
        faults.append(f"balance must be 'loss', 'bias' or 'none', got {balance!r}")
    if capacity_factor is not None and not 0 < capacity_factor < math.inf:
        faults.append(f"capacity_factor must be a positive number or None, got {capacity_factor}")
    if not 0 <= jitter < 1:
        faults.append(f"jitter must be in [0, 1), got {jitter}")
    if choice == "experts" and balance == "bias":
        faults.append("balance 'bias' is for tokens that choose; experts that choose are balanced")
    if faults:
        raise InputError(f"router: {'; '.join(faults)}.")
