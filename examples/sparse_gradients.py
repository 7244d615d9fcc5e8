"""Gradients that are sparse on their way back: the largest tenth goes through each layer."""

import copy

import torch
from torch import nn

import gossamer
from gossamer.nn.intermediate import SparseOutput, sparsify_outputs
from gossamer.ops.fallback import fallbacks

torch.manual_seed(0)
dense = nn.Sequential(
    nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
)
x = torch.randn(256, 32)
labels = nn.Linear(32, 10)(x).argmax(-1)

# The gradient of a product's output becomes compressed rows; both products of its backward
# multiply what is held. The forward is dense.
tenth = SparseOutput(gradient="fraction:0.9", gradient_format="csr")
# The same with 2 of 4 gradients, zeros in place.
half = SparseOutput(gradient="2:4")


def train(model):
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


for name, rule in (("dense", None), ("a tenth", tenth), ("2 of 4", half)):
    model = copy.deepcopy(dense)
    if rule is not None:
        sparsify_outputs(model, {"0/linear": rule, "2/linear": rule}, x)
    with gossamer.strict():
        print(f"{name}: loss {train(model):.3f} after 60 steps")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    nn.functional.cross_entropy(compiled(x), labels).backward()
    exported = torch.export.export(model, (x,)).module()
    print(f"  exported: differs by {float((exported(x) - model(x)).detach().abs().max()):.1e}")
print("fallbacks:", *fallbacks() or ["none"])
