# SPDX-License-Identifier: Apache-2.0
"""Early-Bird's detector, its two forms, and the distributed threshold."""

import copy
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from grid_ranks import join, started
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from schedule_runs import run, schedule
from torch import nn

import gossamer
from gossamer.errors import DistributedError, InputError, RecipeError, TargetError
from gossamer.patterns.selection import keep_largest
from gossamer.pruning.schedules.early.early_bird import MaskHistory, mask_distance, packed
from gossamer.pruning.schedules.radix_select import keep_largest_across

WORLD = 4


def random_mask(density, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return keep_largest(torch.rand(size, generator=generator), round(density * size))


@pytest.mark.parametrize("sparsity", [0.8, 0.9, 0.95])
def test_random_masks_are_far_apart_in_overlap_and_near_in_hamming(sparsity):
    kept, size = 1 - sparsity, 100_000
    a, b = (packed([random_mask(kept, size, seed)]) for seed in (0, 1))
    assert mask_distance(a, b, size, "hamming") == pytest.approx(2 * kept * sparsity, abs=5e-3)
    assert mask_distance(a, b, size, "overlap") == pytest.approx(sparsity, abs=2e-2)
    assert mask_distance(a, a, size, "overlap") == mask_distance(a, a, size, "hamming") == 0.0


def test_for_equal_counts_overlap_is_hamming_over_twice_the_density():
    a, b = random_mask(0.1, 5000, 0), random_mask(0.1, 5000, 1)
    pair = (packed([a]), packed([b]), 5000)
    assert mask_distance(*pair, "overlap") == pytest.approx(mask_distance(*pair, "hamming") / 0.2)
    with pytest.raises(InputError, match="sizes differ"):
        mask_distance(packed([a]), packed([b[:100]]), 5000, "overlap")


def original_decisions(masks, size=5, threshold=0.1):
    """The published loop: normalised Hamming of the newest mask to each older one of the FIFO."""
    fifo, decisions = [], []
    for mask in masks:
        fifo = [*fifo, mask][-size:]
        distances = [int((mask != other).sum()) / mask.numel() for other in fifo[:-1]]
        decisions.append(len(fifo) == size and max(distances) <= threshold)
    return decisions


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.floats(0.05, 0.9), st.floats(0.0, 0.4), st.integers(10, 300))
def test_the_literal_mode_decides_as_the_original(seed, density, drift, size):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(size, generator=generator)
    history, found, masks = MaskHistory(5, 0.1, "hamming"), [], []
    for _ in range(12):
        scores = scores + drift * torch.randn(size, generator=generator)
        drift *= 0.7
        masks.append(keep_largest(scores, max(1, round(density * size))))
        distance = history.add([masks[-1]])
        found.append(history.agrees(distance))
    assert found == original_decisions(masks)


def test_at_95_percent_hamming_accepts_random_masks_and_overlap_does_not():
    for kind, accepted in (("hamming", True), ("overlap", False)):
        history = MaskHistory(5, 0.1, kind)
        distances = [history.add([random_mask(0.05, 50_000, seed)]) for seed in range(6)]
        assert history.agrees(distances[-1]) == accepted


def test_the_ticket_is_drawn_when_five_masks_agree():
    _model, _, ctl = run(schedule("early_bird"))
    ticket = next(event for event in ctl.events if event.kind == "ticket")
    looks = [event for event in ctl.events if event.kind == "distance"]
    assert ticket.step == looks[-1].step
    assert ticket.details["agreed"] == (looks[-1].details["distance"] <= 0.25)
    assert all(event.details["distance"] > 0.25 for event in looks[:-1])
    assert all(event.sparsity == 0.0 for event in looks[:-1])
    assert ctl.sparsity() == pytest.approx(0.8, abs=1e-3)


def test_at_the_latest_it_is_drawn_at_the_end():
    _, _, ctl = run(schedule("early_bird", threshold=0.0))
    ticket = next(event for event in ctl.events if event.kind == "ticket")
    assert (ticket.step, ticket.details["agreed"]) == (30, False)


def small_cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 16, 4),
    )  # fmt: skip


def train_cnn(given, steps=30, optimizer_of=torch.optim.AdamW, resume=None, stop=None):
    """A run, or the part of it behind the state `resume`; with `stop` also the state there."""
    model = small_cnn()
    optimizer = optimizer_of(model.parameters(), lr=1e-2)
    ctl = gossamer.attach(model, given, optimizer, total_steps=steps)
    if resume is not None:
        for part, state in zip((model, optimizer, ctl), resume, strict=True):
            part.load_state_dict(state)
    for step in range(ctl.step_count, steps):
        if step == stop:
            resume = copy.deepcopy([part.state_dict() for part in (model, optimizer, ctl)])
        x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), (x.mean((1, 2, 3)) > 0).long())
        extra = ctl.penalty()
        (loss if extra is None else loss + extra).backward()
        optimizer.step()
        ctl.step()
    return (model, ctl, x) if stop is None else (model, resume)


CHANNELS = {"kind": "early_bird", "form": "channels", "sparsity": 0.5, "every": 2, "end": 12}


@pytest.mark.parametrize("optimizer_of", [torch.optim.AdamW, torch.optim.SGD])
def test_cut_channels_are_silent_for_the_rest_of_the_run(optimizer_of):
    model, ctl, x = train_cnn({**CHANNELS, "l1": 1e-2}, optimizer_of=optimizer_of)
    gammas = [model[1].weight, model[4].weight]
    cut = torch.cat([gamma == 0 for gamma in gammas])
    assert int(cut.sum()) == 10
    assert ctl.is_settled
    assert ctl.penalty() is None
    for conv, norm in ((0, 1), (3, 4)):
        dead = model[norm].weight == 0
        assert torch.equal(~model[conv].mask().any(1), dead)
        assert not model[norm].bias.detach()[dead].any()
    model.eval()
    hidden = model[:5](x)
    assert not hidden[:, model[4].weight == 0].any()


@pytest.mark.parametrize("stop", [5, 11, 12, 20])
def test_a_resumed_search_for_channels_is_the_same(stop):
    given = {**CHANNELS, "threshold": 0.0}
    model, state = train_cnn(given, stop=stop)
    resumed, ctl, _ = train_cnn(given, resume=state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name
    assert [event.step for event in ctl.events if event.kind == "ticket"] == [12]


def test_the_penalty_is_l1_of_the_gammas():
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    ctl = gossamer.attach(model, {**CHANNELS, "l1": 1e-3}, optimizer, total_steps=30)
    assert float(ctl.penalty().detach()) == pytest.approx(1e-3 * 20)
    ctl.close()


def test_no_layer_loses_all_its_channels():
    model = small_cnn()
    with torch.no_grad():
        model[1].weight.fill_(1e-3)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    given = {**CHANNELS, "sparsity": 0.6, "begin": 1, "end": 1}
    ctl = gossamer.attach(model, given, optimizer, total_steps=2)
    ctl.step()
    assert [int((model[i].weight != 0).sum()) for i in (1, 4)] == [1, 7]
    ctl.close()


@pytest.mark.parametrize(("sparsity", "kept"), [(0.0, [8, 12]), (0.5, [4, 6]), (0.99, [1, 1])])
def test_budget_uniform_keeps_the_same_part_of_each_layer(sparsity, kept):
    model = small_cnn()
    order = torch.Generator().manual_seed(0)
    with torch.no_grad():
        # All gammas of the first layer are below all of the second.
        for i, low in ((1, 0.1), (4, 0.9)):
            model[i].weight.copy_(low + 0.1 * torch.rand(len(model[i].weight), generator=order))
    before = [model[i].weight.detach().clone() for i in (1, 4)]
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    given = {**CHANNELS, "sparsity": sparsity, "budget": "uniform", "begin": 1, "end": 1}
    ctl = gossamer.attach(model, given, optimizer, total_steps=2)
    ctl.step()
    for i, gamma, number in zip((1, 4), before, kept, strict=True):
        assert torch.equal(model[i].weight != 0, keep_largest(gamma, number))
    ctl.close()


class Added(nn.Module):
    """Two convolutions whose channels are added, and one between them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv0, self.norm0 = nn.Conv2d(1, 10, 1), nn.BatchNorm2d(10)
        self.conv1, self.norm1 = nn.Conv2d(10, 6, 1), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 10, 1), nn.BatchNorm2d(10)
        self.last = nn.Conv2d(10, 2, 1)

    def forward(self, x):
        x = self.norm0(self.conv0(x)).relu()
        return self.last((self.norm2(self.conv2(self.norm1(self.conv1(x)).relu())) + x).relu())


@pytest.mark.parametrize("budget", ["uniform", "global"])
@pytest.mark.parametrize(("sparsity", "left"), [(0.0, (10, 6)), (0.5, (5, 3)), (0.99, (1, 1))])
def test_coupled_channels_go_together_by_the_mean_of_their_gammas(sparsity, left, budget):
    model = Added()
    gammas = [torch.rand(n, generator=torch.Generator().manual_seed(n)) for n in (10, 6)]
    second = torch.rand(10, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.norm0.weight.copy_(gammas[0])
        model.norm1.weight.copy_(gammas[1])
        model.norm2.weight.copy_(second)
    given = {**CHANNELS, "coupled": True, "sparsity": sparsity, "budget": budget}
    given |= {"begin": 1, "end": 1, "ignore": ["last"]}
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    x = torch.randn(2, 1, 4, 4)
    ctl = gossamer.attach(model, given, optimizer, total_steps=2, data=[x])
    ctl.step()
    kept = [norm.weight != 0 for norm in (model.norm0, model.norm1, model.norm2)]
    assert torch.equal(kept[0], kept[2])
    number = [int(mask.sum()) for mask in kept]
    mean = (gammas[0] + second) / 2
    assert torch.equal(kept[0], keep_largest(mean, number[0]))
    assert torch.equal(kept[1], keep_largest(gammas[1], number[1]))
    if budget == "uniform":
        assert tuple(number[:2]) == left
    else:
        # The number of channels that is nearest: groups have two members or one.
        wanted = max(3, (1 - sparsity) * 26)
        assert abs(sum(number) - wanted) <= 1
    ctl.close()


def test_coupled_channels_need_an_example():
    optimizer = torch.optim.SGD(Added().parameters(), 0.1)
    with pytest.raises(InputError, match="data="):
        gossamer.attach(Added(), {**CHANNELS, "coupled": True}, optimizer, total_steps=30)
    given = {"kind": "early_bird", "sparsity": 0.5, "coupled": True}
    with pytest.raises(RecipeError, match="belongs to form: channels"):
        gossamer.attach(Added(), given, optimizer, total_steps=30)


def test_channels_need_batch_norm():
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TargetError, match="form 'weights'"):
        gossamer.attach(model, CHANNELS, optimizer, total_steps=30)
    # The failed attempt holds nothing back.
    gossamer.attach(model, {"kind": "random", "sparsity": 0.5}, optimizer, total_steps=30)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 1e-40, 0.5, 0.5, 1.0, 3e38]), max_size=9), max_size=4),
    st.integers(0, 40),
)
def test_one_process_keeps_what_the_plain_selection_keeps(parts, num_kept):
    scores = [torch.tensor(part) for part in parts]
    whole = torch.cat(scores) if scores else torch.empty(0)
    density = min(num_kept / max(1, len(whole)), 1.0)
    found = keep_largest_across(scores, density)
    expected = keep_largest(whole, num_kept)
    assert torch.equal(torch.cat(found) if found else torch.empty(0, dtype=torch.bool), expected)


def test_scores_that_cannot_be_ranked_are_refused():
    for bad in (torch.tensor([-1.0]), torch.tensor([torch.nan])):
        with pytest.raises(InputError, match="at least 0"):
            keep_largest_across([bad], 1)
    with pytest.raises(InputError, match="float64"):
        keep_largest_across([torch.zeros(2, dtype=torch.float64)], 1)
    assert keep_largest_across([torch.tensor([-0.0, 0.0])], 0.5)[0].tolist() == [True, False]


def rank_scores(rank):
    """Many ties, layers of unequal size, one rank with nothing in a layer."""
    generator = torch.Generator().manual_seed(rank)
    sizes = [(7, 5), (0, 3), (40, 11 + rank)]
    return [torch.randint(0, 20, size, generator=generator) / 16.0 for size in sizes]


def rank_main(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(Path(folder) / "rendezvous").as_uri(),
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=60),
    )
    try:
        found = {}
        total = sum(s.numel() for r in range(WORLD) for s in rank_scores(r))
        for num_kept in (0, 1, total // 10, total // 2, total - 1, total):
            masks = keep_largest_across(rank_scores(rank), num_kept / total, dist.group.WORLD)
            found[str(num_kept)] = torch.cat([mask.flatten() for mask in masks]).to(torch.uint8)
        found |= sharded_early_bird(rank)
        found |= replicas(rank)
        save_file(found, Path(folder) / f"rank{rank}.safetensors")
    finally:
        dist.destroy_process_group()


def sharded_early_bird(rank):
    """Every rank holds one layer; the ticket is that of the whole model."""
    model = nn.Sequential(whole_model()[rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = {"kind": "oneshot", "at": 0, "sparsity": 0.9, "budget": "global"}
    ctl = gossamer.attach(model, given, optimizer, total_steps=1, shards=dist.group.WORLD)
    ctl.close()
    # Of the whole model, on every rank; a rank's own layer has another one.
    assert ctl.sparsity() == ctl.events[-1].sparsity == pytest.approx(0.9, abs=1e-3)
    return {"shard": model[0].mask().to(torch.uint8)}


def whole_model():
    torch.manual_seed(5)
    return nn.Sequential(*(nn.Linear(16 + 4 * i, 24) for i in range(WORLD)))


def replicas(rank):
    """RigL on other data per rank: equal masks by reduced gradients; other weights are refused."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = {"kind": "rigl", "sparsity": 0.7, "every": 1, "end": 8}
    ctl = gossamer.attach(model, given, optimizer, total_steps=10)
    wrapped = nn.parallel.DistributedDataParallel(model)
    with pytest.raises(InputError, match=r"attach\(model, ...\) first"):
        gossamer.attach(wrapped, given, optimizer, total_steps=10)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(8):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 16, generator=generator)).square().sum().backward()
        optimizer.step()
        ctl.step()
    ctl.close()
    masks = torch.cat([model[i].mask().flatten() for i in (0, 2)]).to(torch.uint8)
    torch.manual_seed(rank)
    other = nn.Sequential(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    with pytest.raises(DistributedError, match="masks differ"):
        gossamer.attach(
            other, {"kind": "oneshot", "at": 0, "sparsity": 0.5}, optimizer, total_steps=1
        )
    return {"replica": masks}


@pytest.mark.timeout(180)
def test_four_ranks_select_what_one_process_would(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with started(rank_main, (str(tmp_path),), WORLD) as ranks:
        join(ranks)
    found = [load_file(tmp_path / f"rank{rank}.safetensors") for rank in range(WORLD)]
    whole = torch.cat([s.flatten() for rank in range(WORLD) for s in rank_scores(rank)])
    for key in found[0]:
        if key.isdigit():
            gathered = torch.cat([part[key] for part in found]).bool()
            assert torch.equal(gathered, keep_largest(whole, int(key))), key
            assert int(gathered.sum()) == int(key)
    model = whole_model()
    gossamer.sparsify(model, sparsity=0.9, budget="global")
    for layer, part in zip(model, found, strict=True):
        assert torch.equal(layer.mask(), part["shard"].bool())
    for part in found[1:]:
        assert torch.equal(part["replica"], found[0]["replica"])
