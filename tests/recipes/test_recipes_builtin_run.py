import pytest
import torch

from gossamer import sparsify
from gossamer.nn import MaskedWeight
from gossamer.recipes.loader import builtin_names, load_recipe
from gossamer.zoo import TinyEncoder


def tiny():
    torch.manual_seed(0)
    return TinyEncoder(50, 3, width=64, num_heads=4, num_layers=2, ffn_width=128).eval()


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_recipe_runs(name):
    model = tiny()
    generator = torch.Generator().manual_seed(1)
    data = [torch.randint(50, (6, 12), generator=generator) for _ in range(6)]
    # Calls cost as much as arithmetic in so small a model: half of its time cannot be saved.
    overrides = ["stages.0.structured.budget=0.9"] if "latency" in name else []
    recipe = load_recipe(name, overrides)
    report = sparsify(
        model, recipe, data=data, evaluate=lambda net: float(net(data[0]).detach().abs().sum())
    )
    assert report.quality_dense is not None
    assert report.quality_sparse is not None
    assert report.bytes_sparse < report.bytes_dense
    assert report.ms_dense is not None
    masked = [m for m in model.modules() if isinstance(m, MaskedWeight)]
    if any(stage.prune for stage in recipe.stages):
        assert len(masked) == len(report.layers) > 0
        sparsity = recipe.stages[-1].prune.sparsity
        if sparsity is not None:
            assert report.sparsity == pytest.approx(sparsity, abs=0.01)
    if any(stage.structured for stage in recipe.stages):
        assert any("heads and" in note for note in report.notes)
        small = sum(p.numel() for p in model.layers.parameters())
        assert small < sum(p.numel() for p in tiny().layers.parameters())
