# SPDX-License-Identifier: Apache-2.0
"""The types of numbers that files hold: by their code in safetensors, and by name.

`DTYPES` has a row per code; a type that is not there can be neither written nor read. Manifests
spell `dtype_name`s, which `DTYPE_NAMES` turns back.
"""

import torch

__all__ = [
    "DTYPES",
    "DTYPE_CODES",
    "DTYPE_NAMES",
    "dtype_name",
]

# safetensors code, torch dtype. A dtype that is not here can be neither written nor read.
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
DTYPE_CODES = {dtype: code for code, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


# Names as the manifest spells them: "float32", not "torch.float32".
DTYPE_NAMES = {dtype_name(dtype): dtype for dtype in DTYPES.values()}
