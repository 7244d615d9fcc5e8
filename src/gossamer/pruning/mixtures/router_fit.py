# SPDX-License-Identifier: Apache-2.0
"""A router fitted to what experts give: multinomial logistic regression, which is convex.

Legend: T tokens, E experts, D width.
"""

import torch
from torch.nn.functional import cross_entropy

_STEPS = 60
_DECAY = 1e-4


def fit_router(x_TD: torch.Tensor, gives_TE: torch.Tensor) -> torch.Tensor:
    """Weights [E, D] whose logits rank experts as what they give ranks them.

    The softmax of the logits is fitted to each expert's share of what all give for a token. Inputs
    are scaled by their root mean square, so that one decay suits every layer.

    Args:
        x_TD: what the router will see.
        gives_TE: what each expert gives for each token, from 0 on.
    """
    scale_D = x_TD.square().mean(0).sqrt().clamp(min=1e-6)
    x_TD = x_TD / scale_D
    share_TE = gives_TE / gives_TE.sum(1, keepdim=True).clamp(min=1e-30)
    weight_ED = torch.zeros(gives_TE.shape[1], x_TD.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight_ED], max_iter=_STEPS, history_size=10, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = cross_entropy(x_TD @ weight_ED.t(), share_TE)
        value = value + _DECAY * weight_ED.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weight_ED.detach() / scale_D
