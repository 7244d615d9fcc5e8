# SPDX-License-Identifier: Apache-2.0
"""SparseProp: a sparse Linear in torch, forward or forward and backward."""

import torch
from serve import serve
from sparseprop.modules import SparseLinear


def prepare(weight, x, task, threads):
    torch.set_num_threads(threads)
    layer = SparseLinear(torch.from_numpy(weight))
    inputs = torch.from_numpy(x)
    if task == "forward":

        def run():
            with torch.no_grad():
                return layer(inputs).numpy()

        return run
    inputs.requires_grad_()
    grad = torch.ones(len(x), len(weight))

    def step():
        inputs.grad = layer.W_val.grad = None
        y = layer(inputs)
        y.backward(grad)
        return y.detach().numpy()

    return step


serve(prepare)
