"""An MLP whose hidden activations are held and multiplied as compressed rows."""

import copy

import torch
from torch import nn

import gossamer
from gossamer.nn.intermediate import SparseOutput, sparsify_outputs

torch.manual_seed(0)
dense = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
sparse = copy.deepcopy(dense)
x = torch.randn(256, 32)
labels = nn.Linear(32, 10)(x).argmax(-1)

# Inline: ReLU and the threshold run slice by slice, and no dense activation is ever written.
sparsify_outputs(sparse, {"1/relu": SparseOutput("threshold:0.5", temporary="csr")}, x)


def train(model):
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float((model(x).argmax(-1) == labels).float().mean())


def held_for_backward(model):
    """Bytes that autograd keeps of a step, those of weights aside."""
    weights = {param.untyped_storage().data_ptr() for param in model.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(kept.values())


with gossamer.strict():  # nothing falls back to dense
    accuracies = train(dense), train(sparse)
print(f"accuracy: dense {accuracies[0]:.3f}, sparse {accuracies[1]:.3f}")
print(f"held for backward: {held_for_backward(dense):,} and {held_for_backward(sparse):,} bytes")
# A graph has no sizes that depend on numbers: zeros stay in place there, which is counted.
compiled = torch.compile(sparse, fullgraph=True, backend="aot_eager")
exported = torch.export.export(sparse, (x,)).module()
for name, model in (("compiled", compiled), ("exported", exported)):
    print(f"{name}: differs by {float((model(x) - sparse(x)).detach().abs().max()):.1e}")
