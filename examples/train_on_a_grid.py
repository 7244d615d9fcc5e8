# SPDX-License-Identifier: Apache-2.0
"""Your own model on a grid of processes, in your own code: two replicas with sharded parameters.

Start it with `torchrun --nproc-per-node 4 examples/train_on_a_grid.py`; without torchrun it trains
the same in one process.
"""

import torch
from torch.nn.functional import cross_entropy

import gossamer
from gossamer.data import ShuffledBatches
from gossamer.training.distributed import MeshSizes, picture, split_batch
from gossamer.training.distributed.placement import ProcessMesh
from gossamer.training.distributed.processes import joined, world_of_environment
from gossamer.training.loop import LearningRate, Loop, LoopSettings
from gossamer.zoo import GPT

MESH = MeshSizes(data=2, shard=2)
BATCH, STEPS = 16, 20


def loss(model, ids):
    return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def train(grid: ProcessMesh | None) -> None:
    torch.manual_seed(0)
    model = GPT(32, width=32, num_heads=4, num_layers=2, context=16)
    gossamer.sparsify(model, sparsity=0.9)
    # Every token follows from the one before it.
    ids = (torch.randint(32, (512, 1)) + 5 * torch.arange(17)) % 32
    batches = ShuffledBatches(len(ids), BATCH, seed=0, take=lambda index: ids[index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    settings = LoopSettings(steps=STEPS, rate=LearningRate("constant", STEPS, 0), clip=1.0)
    loop = Loop(model, optimizer, loss, batches, settings, processes=grid)
    loop.train()
    if grid is None or grid.is_lead:
        # The leading rank has the whole model again.
        with torch.no_grad():
            print(f"loss after {STEPS} steps: {loss(model, ids):.3f}")
        gossamer.save(model, "grid-model")


if world_of_environment() is None:
    train(None)
else:
    with joined(MESH) as session:
        if session.is_lead:
            print(picture(MESH, split_batch(MESH, BATCH)))
        train(ProcessMesh(session))
