# SPDX-License-Identifier: Apache-2.0
"""The grid as numbers: places, shares of a batch, and everything that is refused beforehand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.errors import InputError, RecipeError
from gossamer.recipes.loader import parse_recipe
from gossamer.training.distributed import MeshSizes, picture, split_batch

sizes = st.builds(MeshSizes, *(st.integers(1, 4) for _ in range(4)))


@given(sizes)
def test_every_rank_has_a_place_of_its_own(mesh):
    places = [mesh.place(rank) for rank in range(mesh.num_ranks)]
    assert len(set(places)) == mesh.num_ranks
    assert [mesh.rank(place) for place in places] == list(range(mesh.num_ranks))


def test_neighbours_share_heads_then_parameters_then_layers():
    mesh = MeshSizes(data=2, pipeline=2, shard=2, tensor=2)
    assert (mesh.place(1).tensor, mesh.place(2).shard) == (1, 1)
    assert (mesh.place(4).pipeline, mesh.place(8).data) == (1, 1)


@given(sizes, st.integers(0, 64), st.integers(1, 4))
def test_a_batch_is_shared_without_rest_or_refused_with_ones_that_work(mesh, batch, micro):
    micro = micro if mesh.pipeline > 1 else 1
    try:
        split = split_batch(mesh, batch, micro)
    except InputError as error:
        offered = [int(word) for word in str(error).partition("Use ")[2].rstrip(".").split(" or ")]
        assert offered
        for other in offered:
            split_batch(mesh, other, micro)
    else:
        assert split.per_microbatch * micro * mesh.num_parts == batch > 0


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_a_size_that_is_no_count_is_refused(value):
    with pytest.raises(InputError, match=r"mesh\.shard: must be a whole number from 1"):
        MeshSizes(shard=value)


def test_another_number_of_processes_is_refused_with_both_numbers():
    with pytest.raises(InputError, match="needs 4 processes, but 3 were started"):
        MeshSizes(data=2, pipeline=2).check_world(3)


def test_microbatches_without_a_pipeline_are_refused():
    with pytest.raises(InputError, match="need a pipeline"):
        split_batch(MeshSizes(data=2), 8, 2)


def test_the_picture_says_who_does_what():
    mesh = MeshSizes(data=2, pipeline=2)
    shown = picture(mesh, split_batch(mesh, 8, 2))
    assert "rank 3: samples 4-7 of 8, stage 2 of 2" in shown
    assert "2 microbatches of 2" in shown
    large = MeshSizes(data=64)
    assert len(picture(large, split_batch(large, 64)).splitlines()) == 18


RECIPE = """\
gossamer: 1
stages:
  - train:
      task: text
      model: {{name: gpt, layers: 2}}
      steps: 4
      batch: {batch}
      mesh: {mesh}
"""


@pytest.mark.parametrize(
    ("batch", "mesh", "text"),
    [
        (30, "{data: 4}", "30 samples cannot be shared"),
        (32, "{pipeline: 4}", "4 stages are more than the model's 2 layers"),
        (32, "{data: 0}", "data"),
        (32, "{microbatches: 4}", "need a pipeline"),
        (32, "{pipeline: 2, schedule: fastest}", "schedule"),
        (32, "{timeout: -1}", "timeout"),
        (32, "{datas: 2}", "datas"),
    ],
)
def test_a_recipe_with_a_grid_that_cannot_work_is_refused(batch, mesh, text):
    with pytest.raises(RecipeError, match=text):
        parse_recipe(RECIPE.format(batch=batch, mesh=mesh).encode(), "recipe.yaml")


def test_a_recipe_cuts_two_microbatches_per_stage_where_they_divide():
    def mesh_of(batch):
        text = RECIPE.format(batch=batch, mesh="{data: 2, pipeline: 2}")
        return parse_recipe(text.encode(), "recipe.yaml").stages[0].train.mesh

    assert [mesh_of(batch).num_microbatches(batch) for batch in (16, 12, 6, 2)] == [4, 2, 1, 1]
