# SPDX-License-Identifier: Apache-2.0
"""SqueezeNet and a network of shifts: sizes, what a shift is, files, and zeros in them."""

import pytest
import torch
import torch.nn.functional as F

import gossamer
from gossamer.errors import InputError, RecipeError
from gossamer.nn.surgery.channels import cut_dead_channels
from gossamer.recipes import make_recipe
from gossamer.zoo import ZOO
from gossamer.zoo.small_nets import Shift, ShiftNet, SqueezeNet

SMALL = {"squeezenet": {"classes": 5, "width": 8, "small": True}, "shift-net": {"classes": 5}}


def test_squeezenet_has_as_many_weights_as_its_layers_say():
    def fire(inputs, squeezed, expanded):
        return (
            inputs * squeezed
            + squeezed
            + squeezed * expanded
            + expanded
            + 9 * squeezed * expanded
            + expanded
        )

    fires = [(64, 16, 64), (128, 16, 64), (128, 32, 128), (256, 32, 128)]
    fires += [(256, 48, 192), (384, 48, 192), (384, 64, 256), (512, 64, 256)]
    wanted = 9 * 3 * 64 + 64 + sum(fire(*sizes) for sizes in fires) + 512 * 1000 + 1000
    model = SqueezeNet()
    assert sum(p.numel() for p in model.parameters()) == wanted == 1_235_496
    assert model.eval()(torch.randn(1, 3, 224, 224)).shape == (1, 1000)


@pytest.mark.parametrize("channels", [1, 8, 9, 10, 27])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_shift_is_a_depthwise_product_with_one_weight(channels, stride):
    x = torch.randn(2, channels, 5, 6, dtype=torch.float64)
    kernel = torch.zeros(channels, 1, 3, 3, dtype=torch.float64)
    for channel in range(channels):
        number = channel // (channels // 9) if channels >= 9 else 9
        # What is left over stays in the middle.
        down, right = divmod(number, 3) if number < 9 else (1, 1)
        kernel[channel, 0, down, right] = 1.0
    expected = F.conv2d(x, kernel, stride=stride, padding=1, groups=channels)
    assert torch.equal(Shift(stride)(x), expected)


@pytest.mark.parametrize("name", SMALL)
def test_files_and_zeros(name, tmp_path):
    torch.manual_seed(0)
    model = ZOO[name](**SMALL[name]).eval()
    assert ZOO[name](**model.zoo_args()).zoo_args() == model.zoo_args()
    x = torch.randn(2, 3, 16, 16)
    gossamer.sparsify(model, sparsity=0.5, targets=["Conv2d"])
    expected = model(x)
    assert expected.shape == (2, 5)
    gossamer.save(model, tmp_path / "net")
    assert torch.equal(gossamer.load(tmp_path / "net")(x), expected)
    fast = gossamer.compile(model, example=x)
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_slim_ones_are_saved_with_their_sizes(name, tmp_path):
    torch.manual_seed(0)
    model = ZOO[name](**SMALL[name]).eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        layer = model.fires[0].one if name == "squeezenet" else model.stages[0].conv2
        layer.weight[:3] = 0.0
        (layer.bias if layer.bias is not None else model.stages[0].norm2.bias)[:3] = 0.0
        if name == "squeezenet":
            model.fires[1].squeeze.weight[:2] = 0.0
            model.fires[1].squeeze.bias[:2] = 0.0
    expected = model(x)
    cut = cut_dead_channels(model, x)
    assert bool(cut.layers) == (name == "squeezenet")  # shortcuts hold those of the other
    torch.testing.assert_close(model(x), expected)
    gossamer.save(model, tmp_path / "net")
    assert torch.equal(gossamer.load(tmp_path / "net")(x), model(x))


@pytest.mark.parametrize("name", SMALL)
def test_a_recipe_trains_them(name, tmp_path):
    model = {"name": name, "width": 8}
    stage = {"task": "images", "model": model, "steps": 3, "batch": 8}
    recipe = make_recipe({"gossamer": 1, "stages": [{"train": stage}]}, "test")
    trained = gossamer.train(recipe, "zoo:images", out=tmp_path / "net")
    assert trained.steps == 3
    net = gossamer.load(tmp_path / "net")
    assert type(net) is ZOO[name]
    assert net(torch.randn(1, 1, 12, 12)).shape == (1, 6)
    with pytest.raises(RecipeError, match="does not fit task text"):
        make_recipe({"gossamer": 1, "stages": [{"train": {**stage, "task": "text"}}]}, "test")


def test_squeezenet_has_no_layers_to_set():
    stage = {"task": "images", "model": {"name": "squeezenet", "layers": 3}, "steps": 3}
    with pytest.raises(RecipeError, match="squeezenet has none"):
        make_recipe({"gossamer": 1, "stages": [{"train": stage}]}, "test")


def test_bad_sizes():
    for wrong in ({"width": 2}, {"classes": 0}, {"channels": "3"}):
        with pytest.raises(InputError, match="must be an integer"):
            SqueezeNet(**wrong)
    with pytest.raises(InputError, match="blocks"):
        ShiftNet(blocks=0)
