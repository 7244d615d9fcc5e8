import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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

class PackedConv:
    def run(
        self, x: int, images: int, y: int, bias: int, activation: int, added: int = 0
    ) -> None: ...
    @property
    def out_h(self) -> int: ...
    @property
    def out_w(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def pack_conv(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    image: tuple[int, int],
    kernels: str,
) -> PackedConv: ...

class Int8Conv:
    def run(
        self, x: int, images: int, y: int, bias: int, activation: int, added: int = 0
    ) -> None: ...
    @property
    def out_h(self) -> int: ...
    @property
    def out_w(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def activation_bits(self) -> int: ...

def pack_int8_conv(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    image: tuple[int, int],
    kernels: str,
    activation_bits: int = 0,
) -> Int8Conv: ...
def train_conv(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    image: tuple[int, int],
    images: int,
    kernels: str,
    x: int,
    bias: int,
    y: int,
) -> None: ...
def train_conv_grad_input(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    image: tuple[int, int],
    images: int,
    kernels: str,
    grad: int,
    dx: int,
) -> None: ...
def train_conv_grad_values(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    kernel_size: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    image: tuple[int, int],
    images: int,
    kernels: str,
    grad: int,
    x: int,
) -> None: ...
def pack_panel(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
    bf16: bool = False,
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
    kernels: str,
) -> None: ...
def gather(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    itemsize: int,
    dense: int,
    kernels: str,
) -> None: ...
def absorb(
    gradient: int,
    held: int,
    num_blocks: int,
    block_size: int,
    fresh: int,
    scores: int,
    kernels: str,
) -> None: ...
def absorbed_together(block_size: int) -> int: ...
def adamw_step(
    weight: int,
    low: int,
    low_bits: int,
    grad: int,
    mean: int,
    mean_exponents: int,
    square: int,
    square_exponents: int,
    dither_pattern: int,
    dither_shifts: int,
    count: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    number: int,
    kernels: str,
) -> None: ...
def train_linear(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    x: int,
    tokens: int,
    x_stride: int,
    y: int,
    y_stride: int,
    bias: int,
    kernels: str,
) -> None: ...
def train_grad_input(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    x: int,
    tokens: int,
    x_stride: int,
    y: int,
    y_stride: int,
    bias: int,
    kernels: str,
) -> None: ...
def train_grad_values(
    values: int,
    num_values: int,
    mask_bits: NDArray[np.uint8],
    columns: int,
    grad: int,
    grad_stride: int,
    x: int,
    x_stride: int,
    tokens: int,
    kernels: str,
) -> None: ...
def available_extensions() -> list[str]: ...
def available_kernels() -> list[str]: ...
def ceiling_mixes() -> list[str]: ...
def run_ceiling(kernels: str, mix: str, repeats: int) -> float: ...

class Int8Weight(PackedWeight):
    @property
    def activation_bits(self) -> int: ...
    @property
    def activation_scale(self) -> float: ...

def pack_int8(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
    layout: str,
    activation_bits: int = 0,
    activation_scale: float = 0.0,
) -> Int8Weight: ...
def pack_dense_int8(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
) -> PackedWeight: ...
def pack_int8_windows(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
) -> PackedWeight: ...
def pack_bf16(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
    form: str,
) -> PackedWeight: ...
def pack_nmg(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
    num_kept: int,
    group: int,
    repeats: int,
) -> PackedWeight: ...
def pack_strip(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
    block_rows: int,
) -> PackedWeight: ...
def pack_few(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    kernels: str,
    form: str,
    dtype: str,
    scale_group: int,
    slots: int,
    window: int,
) -> PackedWeight: ...

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]

class PanelLinear:
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def kept(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def pack_panel_linear(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8],
    rows: int,
    columns: int,
    bias: NDArray[np.float32] | None,
    kernels: str,
    int8_layout: str = "",
) -> PanelLinear: ...

class EncoderModel:
    def __init__(self, kernels: str, features: int) -> None: ...
    def add_layer(
        self,
        qkv: PanelLinear,
        out: PanelLinear,
        up: PanelLinear,
        down: PanelLinear,
        attention_gain: NDArray[np.float32],
        attention_shift: NDArray[np.float32],
        output_gain: NDArray[np.float32],
        output_shift: NDArray[np.float32],
        epsilon: float,
        heads: int,
        head_width: int,
        scale: float,
        activation: int,
        norm_first: bool,
        is_gated: bool,
        frequencies: NDArray[np.float32],
        rotation_factor: float,
        bias: NDArray[np.float32],
        reach: int,
        window: int,
    ) -> None: ...
    def run(self, x: int, x_stride: int, y: int, y_stride: int, lengths: list[int]) -> None: ...
    def run_products(self, tokens: int) -> None: ...
    @property
    def features(self) -> int: ...
    @property
    def num_layers(self) -> int: ...

class ConvNet:
    def __init__(self, kernels: str, int8: bool) -> None: ...
    def add_shape(self, height: int, width: int, pad: int) -> int: ...
    def add_value(self, shape: int, channels: int, scale: float, zero: int) -> int: ...
    def add_conv(
        self,
        source: int,
        target: int,
        values: NDArray[np.float32],
        mask_bits: NDArray[np.uint8],
        rows: int,
        columns: int,
        bias: NDArray[np.float32] | None,
        phases: int,
        positions: list[tuple[int, int, int]],
        relu: bool,
        added: int,
        added_first: int,
    ) -> None: ...
    def add_phases(self, source: int, target: int, phases: list[tuple[int, int]]) -> None: ...
    def add_largest(
        self, source: int, target: int, phases: int, positions: list[tuple[int, int, int]]
    ) -> None: ...
    def finish(self, result: int, mean: bool) -> None: ...
    def run(self, x: int, images: int, y: int) -> None: ...
    @property
    def activation_bits(self) -> int: ...
    @property
    def input_size(self) -> int: ...
    @property
    def result_size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class NeuronBlock:
    def __init__(
        self,
        gate: NDArray[np.float32],
        up: NDArray[np.float32] | None,
        down: NDArray[np.float32],
        gate_bias: NDArray[np.float32] | None,
        up_bias: NDArray[np.float32] | None,
        shift: float,
        threshold: float,
        power: int,
        rows: int,
        kernels: str,
    ) -> None: ...
    def run(self, x: int, y: int, seen: NDArray[np.uint8] | None = None) -> int: ...
    def run_known(self, x: int, known: NDArray[np.int32], y: int) -> int: ...
    @property
    def neurons(self) -> int: ...
    @property
    def features(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def count_io(
    order: list[tuple[int, int]], neurons: int, memory: int, knows_future: bool
) -> tuple[int, int]: ...
def anneal_order(
    order: list[tuple[int, int]],
    neurons: int,
    memory: int,
    moves: int,
    start: float,
    seed: int,
) -> list[tuple[int, int]]: ...
def stored_weight(
    weight: PackedWeight,
) -> tuple[str, list[int], list[NDArray[np.uint8]]] | None: ...
def restore_weight(
    *, family: str, numbers: list[int], arrays: list[NDArray[np.uint8]], kernels: str
) -> PackedWeight: ...
def pack_few_int(
    values: NDArray[np.float32],
    mask_bits: NDArray[np.uint8] | None,
    rows: int,
    columns: int,
    kernels: str,
    dtype: str,
    scale_group: int,
) -> PackedWeight: ...
def pack_few_int_offsets(
    codes: NDArray[np.uint8],
    scales: NDArray[np.uint16],
    offsets: NDArray[np.uint16],
    group: int,
    kernels: str,
) -> PackedWeight: ...

class Decoder:
    def add_layer(
        self,
        weights: tuple[object, ...],
        norms: tuple[object, ...],
        rotation: int,
        window: int,
        scale: float,
        experts: tuple[object, ...] | None,
        relu: tuple[float, float, NeuronBlock | None],
    ) -> None: ...

def make_decoder(
    *,
    kernels: str,
    embedding: PackedWeight,
    head: tuple[object, object, object],
    final_norm: tuple[object, object, float, bool],
    positions: NDArray[np.float32] | None,
    rotations: tuple[tuple[int, NDArray[np.float32], NDArray[np.float32]], ...],
    **sizes_and_rules: object,
) -> Decoder: ...
def make_session(
    decoder: Decoder,
    *,
    type: int,
    sinks: int,
    window: int,
    chosen: int,
    whole_layers: int,
    mass: float,
) -> DecoderSession: ...
def decoder_cache_bytes(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    context: int,
    type: int,
    sinks: int,
    window: int,
    chosen: int,
) -> int: ...

class DecoderSession:
    def step(self, ids: NDArray[np.int32], all: bool, logits: NDArray[np.float32]) -> None: ...
    def truncate(self, length: int) -> None: ...
    def can_truncate(self, length: int) -> bool: ...
    @property
    def length(self) -> int: ...
    @property
    def cache_bytes(self) -> int: ...

class Table: ...
class Bags: ...

class TableSet:
    def __init__(self, tables: list[Table], paddings: list[int]) -> None: ...
    def pairs(self, ids: int, batch: int, first: int, out: int, kernels: str) -> None: ...

class RowStep: ...

class RowGroups:
    @property
    def num_rows(self) -> int: ...
    def copy_rows(self, to: int) -> None: ...

def table(
    data: int,
    num_rows: int,
    width: int,
    bits: int,
    fake_bits: int,
    scales: int,
    by_row: bool,
    half: bool,
    map: int,
    num_ids: int,
    span: int,
) -> Table: ...
def bags(
    ids: int,
    num_positions: int,
    offsets: int,
    bag_size: int,
    num_bags: int,
    weights: int,
    mean: bool,
    padding: int,
) -> Bags: ...
def row_step(
    rule: int,
    lr: float,
    eps: float,
    mean_rate: float,
    square_rate: float,
    sums: int,
    means: int,
    squares: int,
    noise: int,
) -> RowStep: ...
def table_pool(
    table: Table, bags: Bags, out: int, out_stride: int, kernels: str
) -> tuple[int, int]: ...
def table_groups(table: Table, bags: Bags) -> RowGroups: ...
def table_gradient(
    table: Table,
    groups: RowGroups,
    bags: Bags,
    grad: int,
    grad_stride: int,
    values: int,
    kernels: str,
) -> None: ...
def table_update(
    table: Table,
    groups: RowGroups,
    bags: Bags,
    grad: int,
    grad_stride: int,
    step: RowStep,
    kernels: str,
) -> None: ...
def table_step(
    table: Table, rows: int, count: int, values: int, step: RowStep, kernels: str
) -> None: ...
def huge_pages(memory: int, bytes: int) -> bool: ...
def table_top(values: int, count: int, kernels: str) -> int: ...
def table_encode(floats: Table, bits: int, codes: int, scales: int, kernels: str) -> None: ...

class EdgeRows:
    def __init__(
        self,
        rows: int,
        columns: int,
        num_edges: int,
        starts: int,
        column_ids: int,
        row_ids: int,
        places: int,
        /,
    ) -> None: ...

class AttentionTiles:
    def __init__(
        self,
        lists: int,
        queries: int,
        keys: int,
        num_tiles: int,
        num_masks: int,
        by_query: tuple[int, int, int],
        by_key: tuple[int, int, int],
        masks: int,
        /,
    ) -> None: ...

def attention_forward(
    tiles: AttentionTiles, /, *args: int | float | str | tuple[int, ...]
) -> None: ...
def attention_backward(
    tiles: AttentionTiles, /, *args: int | float | str | tuple[int, ...]
) -> None: ...
def graph_spmm(
    rows: EdgeRows,
    values: int,
    heads: int,
    bias: int,
    x: int,
    y: int,
    width: int,
    is_bf16: bool,
    kernels: str,
    /,
) -> None: ...
def graph_max(rows: EdgeRows, /, *args: int | str) -> None: ...
def graph_max_backward(rows: EdgeRows, /, *args: int | str) -> None: ...
def graph_sddmm(
    rows: EdgeRows, grad: int, x: int, out: int, heads: int, width: int, kernels: str, /
) -> None: ...
def graph_attention(rows: EdgeRows, /, *args: int | float | str) -> None: ...
def graph_attention_backward(rows: EdgeRows, /, *args: int | float | str) -> None: ...
def graph_edge_sum(rows: EdgeRows, /, *args: int | str) -> None: ...
def graph_pair_logits(rows: EdgeRows, /, *args: int | float | str) -> None: ...
def graph_pair_backward(rows: EdgeRows, /, *args: int | float | str) -> None: ...
def graph_make_rows(
    sources: int,
    targets: int,
    count: int,
    columns: int,
    rows: int,
    row_order: int,
    starts: int,
    column_ids: int,
    numbers: int,
    /,
) -> bool: ...
def graph_rcm(by_target: EdgeRows, by_source: EdgeRows, order: int, /) -> None: ...
def graph_sample(
    rows: EdgeRows,
    wanted: int,
    count: int,
    fanout: int,
    seed: int,
    positions: int,
    counts: int,
    /,
) -> int: ...
def graph_count(*args: int | str) -> int: ...
def graph_squeeze(*args: int | str) -> None: ...
def new_result(rows: int, width: int, is_bf16: bool, /) -> Tensor: ...
def drop_results() -> None: ...
def offer_huge_pages(address: int, num_bytes: int, /) -> None: ...
def result_bytes() -> tuple[int, int]: ...
def tokens_to_bytes(*args: int | str) -> None: ...
def finish_tokens(*args: int | str) -> None: ...
def tall_product(*args: int | str) -> None: ...
def tall_outer(*args: int | str) -> None: ...
def product_of_experts(starts: NDArray[np.int64], *args: int | str) -> None: ...
def input_gradient_of_experts(starts: NDArray[np.int64], *args: int | str) -> None: ...
def weight_gradient_of_experts(starts: NDArray[np.int64], *args: int | str) -> None: ...
def clear_idle_experts(starts: NDArray[np.int64], memory: int, bytes_of_expert: int, /) -> None: ...
