"""A small Switch model beside its dense twin of equal arithmetic; then half of its experts go."""

import time

import torch
from torch.nn.functional import cross_entropy

from gossamer.nn.batch import Batch
from gossamer.nn.moe import take_routing
from gossamer.pruning.mixtures import FewerSettings, fewer_experts
from gossamer.training.experts import follow_experts
from gossamer.zoo import GPT
from gossamer.zoo.switch import SwitchGPT

torch.set_num_threads(1)
STEPS, CONTEXT, BATCH = 40, 32, 8
text = "the cat sat. 12 + 34 = 46. el perro corre. x = f(y); the dog ran. 7 * 8 = 56. " * 60
ids = torch.tensor(list(text.encode()))
sizes = {"width": 32, "num_heads": 2, "num_layers": 2, "context": CONTEXT}


def windows(seed):
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH, 1), generator=generator)
    return ids[starts + torch.arange(CONTEXT + 1)]


def loss_of(model, batch):
    return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    follow_experts(model, optimizer)  # experts that saw no token keep weights and moments
    began, numbers = time.process_time(), {}
    for step in range(STEPS):
        loss = loss_of(model, windows(step))
        added, numbers = take_routing(model)  # the balance loss; None for a dense model
        optimizer.zero_grad()
        (loss if added is None else loss + added).backward()
        optimizer.step()
    return time.process_time() - began, numbers


def tell(name, model, seconds, numbers):
    with torch.no_grad():
        loss = sum(float(loss_of(model.eval(), windows(1000 + i))) for i in range(8)) / 8
    weights = sum(param.numel() for param in model.parameters())
    load = f", fullest expert {numbers['moe_load']:.2f} times the mean" if numbers else ""
    print(f"{name}: {weights:,} weights, loss {loss:.3f}, {seconds:.1f} CPU s{load}")


torch.manual_seed(0)
dense = GPT(256, **sizes)
tell("dense", dense, *train(dense))
torch.manual_seed(0)
switch = SwitchGPT(256, **sizes, num_experts=8, top_k=1, every=1)
tell("Switch", switch, *train(switch))

batches = [Batch(windows(2000 + i)[:, :-1]) for i in range(8)]
found = fewer_experts(switch, batches, FewerSettings(keep=0.5))
tell("half of its experts", switch, 0.0, {})
print({name: f"kept {kept}" for name, kept in found.kept.items()})
