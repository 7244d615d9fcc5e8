# SPDX-License-Identifier: Apache-2.0
"""int8 weights of an ONNX file: codes, and a DequantizeLinear behind them.

A weight that is int8 codes times one scale per output to the last bit is stored so. Engines read a
quarter of the bytes and compute with the same numbers as before.
"""

from pathlib import Path

import torch

from gossamer.formats.grid import row_grid

# Smaller ones are not worth a node.
_MIN_ELEMENTS = 1024


def codes_in_file(path: Path) -> int:
    """Store every weight of a file that is on the grid of int8 as codes; gives how many were."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(path)
    graph, nodes = model.graph, []
    for constant in list(graph.initializer):
        if constant.data_type != TensorProto.FLOAT or len(constant.dims) < 2:
            continue
        found = _codes(torch.from_numpy(numpy_helper.to_array(constant).copy()))
        if found is None:
            continue
        axis, codes, scales = found
        name = constant.name
        graph.initializer.remove(constant)
        for part, tensor in (("codes", codes), ("scales", scales)):
            graph.initializer.append(numpy_helper.from_array(tensor.numpy(), f"{name}.{part}"))
        stored = [f"{name}.codes", f"{name}.scales"]
        nodes.append(
            helper.make_node("DequantizeLinear", stored, [name], f"{name}.weight", axis=axis)
        )
        for known in list(graph.value_info):
            if known.name == name:
                graph.value_info.remove(known)
    if nodes:
        after = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes, *after])
        onnx.checker.check_model(model)
        onnx.save(model, path)
    return len(nodes)


def _codes(weight: torch.Tensor) -> tuple[int, torch.Tensor, torch.Tensor] | None:
    """Axis of the outputs, codes and scales; None if the weight is on no grid of int8."""
    if weight.numel() < _MIN_ELEMENTS:
        return None
    # Exporters turn the matrices of linear layers round.
    for axis in (0, 1) if weight.ndim == 2 else (0,):
        rows_RK = (weight.T if axis else weight.flatten(1)).contiguous()
        coded = row_grid(rows_RK.shape[1]).encode_exactly(rows_RK)
        if coded is not None:
            codes_RK, scales_R1, _ = coded
            codes = codes_RK.T.contiguous() if axis else codes_RK.view(weight.shape)
            return axis, codes, scales_R1.flatten().float()
    return None
