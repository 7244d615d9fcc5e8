import numpy as np
from numpy.typing import NDArray

class PackedWeight:
    def run(
        self, x: int, tokens: int, x_stride: int, y: int, y_stride: int, bias: int, activation: int
    ) -> None: ...
    def unpack(self, values: NDArray[np.float32], mask_bits: NDArray[np.uint8]) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def is_lossless(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...

def pack_panel(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
) -> PackedWeight: ...
def pack_shared_panel(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
    tile_rows: int,
    used: int,
    group: int,
) -> PackedWeight: ...
def expand(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    itemsize: int,
    dense: int,
) -> None: ...
def gather(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    itemsize: int,
    dense: int,
) -> None: ...
def available_kernels() -> list[str]: ...
def ceiling_mixes() -> list[str]: ...
def run_ceiling(kernels: str, mix: str, repeats: int) -> float: ...
