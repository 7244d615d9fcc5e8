# SPDX-License-Identifier: Apache-2.0
"""Outside nn/ nobody asks which class a layer is: the table of layer kinds answers.

Counted are type tests on layer classes and branches on kind, form and `hasattr(..., "values")`.
The list of files that still have some may only shrink.
"""

import ast
from pathlib import Path

import gossamer

SOURCE = Path(gossamer.__file__).parent
CLASSES = {
    *("Linear", "Conv2d", "Embedding", "MaskedLinear", "MaskedConv2d", "MaskedOutProj"),
    *("MaskedWeight", "CompactWeight", "SparseLayer", "PackedLinear", "PackedConv2d"),
    "NonDynamicallyQuantizableLinear",
}
QUESTIONS = {"form_of", "kind_of", "kind_name"}
ALLOWED = {
    "io/artifact/inventory.py": 1,
    "io/artifact/reader.py": 3,
    "planner/model_tracing.py": 1,
    "pruning/calibration/statistics.py": 3,
    "pruning/schedules/layers.py": 2,
    "running/conv_net/batch_norm.py": 3,
    "running/conv_net/fused_convs.py": 4,
    "running/conv_net/network.py": 1,
    "running/conv_net/plan.py": 2,
    "running/decoder/features.py": 2,
    "running/decoder/weights.py": 1,
    "running/encoder/layers.py": 2,
    "running/layers/compiler.py": 3,
    "running/layers/neurons.py": 1,
    "runs/executor.py": 1,
    "runs/made_up_input.py": 1,
    "runs/stages/round.py": 1,
    "search/workloads/workload.py": 1,
    "training/checkpoint/restoring.py": 1,
    "training/distributed/placement/tensor_parallel.py": 4,
    "training/distributed/tasc/direct.py": 1,
    "training/recovery/fake_int8.py": 2,
    "training/recovery/lora.py": 3,
}


def named(node):
    """Names of classes inside an expression: `A | B`, `(A, B)`, `nn.Linear`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def is_layer_test(node):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "isinstance" and len(node.args) == 2:
            return bool(CLASSES & set(named(node.args[1])))
        return node.func.id == "hasattr" and getattr(node.args[1], "value", None) == "values"
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        asks = any(
            isinstance(s, ast.Call) and getattr(s.func, "id", "") in QUESTIONS for s in sides
        )
        # Manifests and charts have kinds of their own, which are none of these.
        texts = {"kind": {"linear", "conv"}, "form": {"masked", "compact", "packed"}}
        spelled = {getattr(c, "value", "") for s in sides for c in ast.walk(s)}
        read = {s.attr for s in sides if isinstance(s, ast.Attribute)} & set(texts)
        types = any(isinstance(s, ast.Call) and getattr(s.func, "id", "") == "type" for s in sides)
        layer = any(CLASSES & set(named(s)) for s in node.comparators)
        return asks or any(texts[name] & spelled for name in read) or (types and layer)
    return False


def count(source):
    return sum(is_layer_test(node) for node in ast.walk(ast.parse(source)))


def found():
    files = (path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "nn")
    counts = {str(path.relative_to(SOURCE)): count(path.read_text()) for path in files}
    return {name: number for name, number in counts.items() if number}


def test_type_tests_on_layers_only_become_fewer():
    counts = found()
    more = {name: number for name, number in counts.items() if number > ALLOWED.get(name, 0)}
    assert not more, f"ask nn/layer_kinds.py instead: {more}"
    assert counts == ALLOWED, "fewer than allowed: make the list smaller"


def test_a_type_test_would_be_found():
    for line in (
        "isinstance(m, nn.Linear | Conv2d)",
        "type(layer) is nn.Linear",
        "type(layer) in (nn.Linear, nn.Conv2d)",
        'form_of(m) == "masked"',
        'layer.form == "compact"',
        'hasattr(layer, "values")',
    ):
        assert count(line) == 1, line
    assert count("isinstance(m, nn.LayerNorm)") == 0
