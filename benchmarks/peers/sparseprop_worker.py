"""Steps a SparseProp layer for benchmarks/training_step.py: one timed step per line of input.

    python benchmarks/peers/sparseprop_worker.py OUT IN SPARSITY TOKENS

Runs in an environment of its own with torch and sparseprop, without gossamer. Prints the seconds
of a forward and backward with the gradients of input and weights.
"""

import argparse
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=int)
    parser.add_argument("columns", type=int)
    parser.add_argument("sparsity", type=float)
    parser.add_argument("tokens", type=int)
    arguments = parser.parse_args()

    import torch
    from sparseprop.modules import SparseLinear

    torch.set_num_threads(1)
    torch.manual_seed(0)
    weight = torch.randn(arguments.rows, arguments.columns)
    weight *= torch.rand_like(weight) >= arguments.sparsity
    layer = SparseLinear(weight)
    x = torch.randn(arguments.tokens, arguments.columns, requires_grad=True)
    grad = torch.randn(arguments.tokens, arguments.rows)
    for _ in sys.stdin:
        layer.W_val.grad = x.grad = None
        start = time.perf_counter()
        layer(x).backward(grad)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
