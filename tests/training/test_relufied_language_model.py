# SPDX-License-Identifier: Apache-2.0
"""A trained character model with shifted ReLUs is as good again after short training."""

import copy
import sysconfig
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from gossamer.nn.relufication import choose_shifts, relufy
from gossamer.training.recovery import measure_activation_sparsity

WINDOW = 64


def characters():
    """Sources of the standard library, the same on every machine with this Python."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:60])
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().clamp(max=127)


def loss(model, ids):
    logits = model(input_ids=ids).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def train(model, text, steps, lr, seed):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, (steps - step) / steps)
    )
    model.train()
    for _ in range(steps):
        starts = torch.randint(len(text) - WINDOW, (12,), generator=generator)
        ids = torch.stack([text[start : start + WINDOW] for start in starts.tolist()])
        optimizer.zero_grad()
        loss(model, ids).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_short_training_recovers_the_loss_with_four_fifths_zeros():
    torch.manual_seed(0)
    everything = characters()
    held_out, text = everything[:40_000], everything[40_000:]
    windows = held_out[: len(held_out) // WINDOW * WINDOW].view(-1, WINDOW)[:320]
    config = GPT2Config(
        vocab_size=128, n_positions=WINDOW, n_embd=128, n_layer=6, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = train(GPT2LMHeadModel(config), text, 400, 2e-3, 0)
    assert 1e6 < sum(p.numel() for p in model.parameters()) < 2e6

    def held_out_loss(model):
        with torch.no_grad():
            return float(loss(model, windows))

    sparse = copy.deepcopy(model)
    trained = held_out_loss(model)
    calibration = text[: 32 * WINDOW].view(-1, WINDOW)
    relufy(sparse, choose_shifts(sparse, [calibration], lambda m, b: m(b), zeros=0.88))
    broken = held_out_loss(sparse)
    assert broken > 1.02 * trained
    # The dense model goes on for as many steps: otherwise any training would look like recovery.
    recovered = held_out_loss(train(sparse, text, 200, 1e-3, 1))
    control = held_out_loss(train(model, text, 200, 1e-3, 1))
    zeros = measure_activation_sparsity(sparse, [windows], lambda m, b: m(b))
    print(f"{trained=:.4f} {broken=:.4f} {recovered=:.4f} {control=:.4f}\n{zeros}")
    assert zeros.zeros >= 0.8
    assert recovered <= 1.02 * control
