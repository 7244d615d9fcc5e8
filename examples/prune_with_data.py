"""Prune a small trained network four ways on the same calibration data, and see what each costs.

No training after pruning: the methods differ in what they know of the inputs of each layer.
"""

import copy

import torch

import gossamer
from gossamer.recipes import Recipe
from gossamer.recipes.schema import Stage
from gossamer.recipes.stages import Prune
from gossamer.zoo import MLP, accuracy, cluster_problem

generator = torch.Generator().manual_seed(0)
problem = cluster_problem(generator)
torch.manual_seed(0)
model = MLP((64, 256, 256, 8))
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
for _ in range(300):
    rows = torch.randint(len(problem.x_train), (256,), generator=generator)
    loss = torch.nn.functional.cross_entropy(model(problem.x_train[rows]), problem.y_train[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()

# Calibration sees no labels and none of the test data.
calibration = list(problem.x_train[:2048].split(256))
steps = {
    "magnitude": Prune(method="magnitude", sparsity=0.9),
    "wanda": Prune(method="wanda", sparsity=0.9),
    "sparsegpt": Prune(method="sparsegpt", sparsity=0.9),
    "admm, aimed at the dense outputs": Prune(method="admm", match="dense", sparsity=0.9),
}


def test_accuracy(network: torch.nn.Module) -> float:
    """Fraction of test samples that are classified right."""
    with torch.no_grad():
        return accuracy(network(problem.x_test), problem.y_test)


print(f"dense: {test_accuracy(model):.3f}")
for name, step in steps.items():
    pruned = copy.deepcopy(model)
    recipe = Recipe(gossamer=1, stages=(Stage(prune=step),))
    report = gossamer.sparsify(pruned, recipe, data=calibration, evaluate=test_accuracy)
    print(f"{name}: {report.quality_sparse:.3f} at {report.sparsity:.0%} zeros")
