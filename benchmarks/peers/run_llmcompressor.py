# SPDX-License-Identifier: Apache-2.0
"""SparseGPT by llm-compressor's `oneshot`, in its own environment: one JSON line with its cost.

    python run_llmcompressor.py MODEL WINDOWS.safetensors OUT [--pattern 0:0] [--threads 1]

MODEL is a Hugging Face directory with tokenizer.json, WINDOWS holds `input_ids` [samples, tokens].
The package's defaults are kept (block 128, damping 0.01). OUT gets the pruned weights, zeros
included.
"""

import argparse
import json
import resource
import time

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.pruning import SparseGPTModifier
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast


def main():
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("windows")
    options.add_argument("out")
    options.add_argument("--pattern", default="0:0", help="N:M of zeros, 0:0 for unstructured")
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    ids = load_file(given.windows)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = {"input_ids": ids.tolist(), "attention_mask": torch.ones_like(ids).tolist()}
    cpu, wall = time.process_time(), time.perf_counter()
    oneshot(
        model=model,
        dataset=Dataset.from_dict(rows),
        # The data are ids already, but the package wants a tokenizer.
        processor=PreTrainedTokenizerFast(tokenizer_file=f"{given.model}/tokenizer.json"),
        recipe=SparseGPTModifier(
            sparsity=0.5, mask_structure=given.pattern, targets=["Linear"], ignore=["re:.*lm_head"]
        ),
        num_calibration_samples=len(ids),
        max_seq_length=ids.shape[1],
    )
    cost = {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "peak_before": before * 1024,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    model.save_pretrained(given.out)
    print(json.dumps(cost))


if __name__ == "__main__":
    main()
