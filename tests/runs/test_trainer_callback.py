# SPDX-License-Identifier: Apache-2.0
"""A schedule inside the Trainer of transformers."""

import pytest
import torch

import gossamer
from gossamer.errors import InputError
from gossamer.nn import Linear, MaskedLinear

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def tiny():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=2,
    )
    return transformers.BertForSequenceClassification(config)


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(30, (6,), generator=generator)
        return {"input_ids": ids, "labels": int(ids[0] < 15)}


def trainer_of(tmp_path, schedule, steps=12, **words):
    from gossamer.runs.trainer_callback import SparsityCallback

    callback = SparsityCallback(schedule, **words)
    args = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=steps,
        per_device_train_batch_size=8,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=4,
        use_cpu=True,
        gradient_accumulation_steps=2,
    )
    trainer = transformers.Trainer(tiny(), args, train_dataset=Data(), callbacks=[callback])
    return trainer, callback


def linears(model, kind):
    return [m for m in model.modules() if isinstance(m, kind)]


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "gradual", "sparsity": 0.8, "begin": 1, "end": 8, "every": 2},
        {"kind": "rigl", "sparsity": 0.8, "every": 2, "end": 8},
        {"kind": "topkast", "sparsity": 0.8, "every": 2, "end": 8},
    ],
    ids=lambda schedule: schedule["kind"],
)
def test_masks_move_and_layers_become_compact(tmp_path, schedule):
    trainer, callback = trainer_of(tmp_path, schedule)
    trainer.train()
    layers = linears(trainer.model, Linear)
    assert len(layers) == len(callback.result.compacted) > 4
    kept, total = (sum(n) for n in zip(*((m.nnz, m.mask().numel()) for m in layers), strict=True))
    assert 1 - kept / total == pytest.approx(0.8, abs=0.01)
    held = {p for group in trainer.optimizer.param_groups for p in group["params"]}
    assert all(layer.values in held for layer in layers)
    logged = [entry["sparsity"] for entry in trainer.state.log_history if "sparsity" in entry]
    assert logged[-1] == pytest.approx(0.8, abs=0.01)
    gossamer.save(trainer.model, tmp_path / "artifact")
    again = gossamer.load(tmp_path / "artifact")
    ids = torch.tensor([[1, 2, 3]])
    trainer.model.eval()
    assert torch.equal(trainer.model(ids).logits, again(ids).logits)


def test_it_may_stay_masked(tmp_path):
    schedule = {"kind": "oneshot", "sparsity": 0.5, "at": 2}
    trainer, callback = trainer_of(tmp_path, schedule, steps=4, compaction="off")
    trainer.train()
    assert callback.result is None
    assert linears(trainer.model, MaskedLinear)


def test_resuming_a_checkpoint_of_the_trainer_is_refused(tmp_path):
    _, callback = trainer_of(tmp_path, {"kind": "oneshot", "sparsity": 0.5})
    state = transformers.TrainerState(global_step=5, max_steps=10)
    with pytest.raises(InputError, match="holds no schedule"):
        callback.on_train_begin(None, state, None)
