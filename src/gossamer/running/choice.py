# SPDX-License-Identifier: Apache-2.0
"""Dense or which kernel: measured once per shape, kept on disk, the same on all ranks.

Start at `Chooser.choose` for the kernels of one linear layer (its `Contenders`), and at
`choose_among` for any callables that do the same work (`Rival`). Each answer is a `Choice`.

Races are kept on disk so that a layer shape is timed once: one JSON file per machine under
`GOSSAMER_CACHE`. It is a cache: a damaged file is replaced, and so is one of an older version. Only
races on a quiet machine are filed: a record is believed for good.

Legend: T tokens, R rows (outputs), K columns (inputs).
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

from gossamer import settings
from gossamer.errors import GossamerError, InputError
from gossamer.formats import SparseMatrix
from gossamer.io.safe_files import MAX_MANIFEST_BYTES
from gossamer.io.safe_files.documents import parse_json
from gossamer.named_files import read_named
from gossamer.ops import PRECISIONS, Kernel, Problem, Run, kernel_list
from gossamer.ops.kernels import active_kernels, cpu_name
from gossamer.ops.timing import Race, contest
from gossamer.ops.timing.load import Load

__all__ = ["Call", "Choice", "Chooser", "Contenders", "CostKey", "CostTable", "Forced", "Rival"]

_VERSION = 3


@dataclass(frozen=True)
class CostKey:
    """What a measurement depends on besides the machine."""

    kernel: str
    rows: int
    columns: int
    pattern: str
    density: float
    tokens: int
    threads: int = field(default_factory=torch.get_num_threads)

    def text(self) -> str:
        """The key on disk; density to two digits, since nearby densities cost the same."""
        return (
            f"{self.kernel}|{self.rows}x{self.columns}|{self.pattern}|d={self.density:.2f}"
            f"|t={self.tokens}|n={self.threads}"
        )


class CostTable:
    """Races by what they were about, read once and written back atomically."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = settings.cache_dir() / "kernels.json" if path is None else path
        self._entries = _read(self.path)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, keys: Sequence[CostKey]) -> Race | None:
        """The race of dense and these kernels, all of them and no other, if there is one."""
        held = self._entries.get(_text(keys))
        return held if held is not None and len(held.us) == len(keys) + 1 else None

    def put(self, keys: Sequence[CostKey], race: Race) -> None:
        """File a race of dense, which comes first, and kernels; `save` writes it.

        A race beside a busy neighbour is not filed: the next one may be quiet.
        """
        if race.load.is_quiet:
            self._entries[_text(keys)] = Race(race.us, race.spread)

    def save(self) -> None:
        """Merge with what other processes wrote meanwhile; a read-only cache is no error."""
        merged = {**_read(self.path), **self._entries}
        entries = {key: {"us": list(r.us), "spread": r.spread} for key, r in merged.items()}
        document = {"version": _VERSION, "entries": entries}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            with os.fdopen(handle, "w") as file:
                json.dump(document, file, indent=1)
            Path(name).replace(self.path)


def _text(keys: Sequence[CostKey]) -> str:
    """Of a whole race: times of two races were taken at two moments, and are not comparable."""
    machine = f"{cpu_name()}|{active_kernels()}|torch {torch.__version__}"
    return " + ".join([machine, *(key.text() for key in keys)])


def _read(path: Path) -> dict[str, Race]:
    try:
        raw = read_named(path, MAX_MANIFEST_BYTES)
        document = parse_json(raw, str(path))
        if document["version"] != _VERSION:
            return {}
        return {
            str(key): Race(tuple(float(us) for us in held["us"]), float(held["spread"]))
            for key, held in document["entries"].items()
        }
    except (GossamerError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return {}


Call = Callable[[], object]
# Times dense, which comes first, and kernels in one race.
Timer = Callable[..., Race]

# Sparse must win by this much: within it, the choice would be noise.
_MARGIN = 1.05
# Without measurements: kept fraction below which the sparse kernel won on every shape tried.
_RULE_DENSITY_MANY = 0.5
_RULE_DENSITY_FEW = 0.3
_RULE_FEW_TOKENS = 16


@dataclass(frozen=True)
class Choice:
    """What runs a layer for one number of tokens, and why.

    Times are None where nothing was measured (`GOSSAMER_TUNE=off`, or there is no kernel). `spread`
    is how far best times of parts of the race lie apart; `doubt` says what else the machine did if
    it was busy, and such times are not kept.
    """

    tokens: int
    kernel: str
    why: str
    dense_us: float | None = None
    sparse_us: float | None = None
    spread: float | None = None
    doubt: str = ""

    @property
    def is_sparse(self) -> bool:
        """Whether the sparse kernel runs."""
        return self.kernel != "dense"

    def of_dtype(self, dtype: torch.dtype) -> "Choice":
        """The same, with a word on layers that are computed in another dtype than their own."""
        if dtype is torch.float32 or not self.is_sparse:
            return self
        name = str(dtype).removeprefix("torch.")
        return replace(self, why=f"{self.why}; computed in float32, the weight is {name}")


@dataclass(eq=False)
class Contenders:
    """The dense weight of a layer, its zeros exact, and kernels that are packed when first run.

    Inputs of a race have the dtype of the dense weight; `matrix` is float32 all the same.
    """

    matrix: SparseMatrix
    weight: torch.Tensor
    kernels: tuple[Kernel, ...]
    _packed: dict[str, Run] = field(default_factory=dict)

    def packed(self, kernel: Kernel) -> Run:
        """The weight as `kernel` runs it."""
        if kernel.name not in self._packed:
            self._packed[kernel.name] = kernel.pack(Problem(self.matrix))
        return self._packed[kernel.name]


@dataclass(frozen=True)
class Rival:
    """A kernel's run of one layer; `key` says what its time holds for.

    `unmeasured` is the choice where nothing is measured; None for the rule of densities.
    """

    kernel: str
    key: CostKey
    run: Call
    unmeasured: Choice | None = None


class Chooser:
    """Races a layer's kernels and its dense form, at most once per shape, density and tokens.

    A race on a quiet machine is filed for good. One beside busy neighbours holds for the layers of
    this chooser, so that layers alike get the same kernel; the next chooser races again.

    Args:
        table: where measurements are kept.
        timer: races callables; tests replace it.
    """

    def __init__(self, table: CostTable | None = None, timer: Timer = contest) -> None:
        self._table = CostTable() if table is None else table
        self._timer = timer
        self._tune = settings.tuning_enabled()
        self._raced: dict[tuple[CostKey, ...], Race] = {}

    def choose(self, contenders: Contenders, tokens: int) -> Choice:
        """The fastest of dense and the kernels. In a process group rank 0 decides for all."""
        kernels = [kernel for kernel in contenders.kernels if kernel.suits(tokens)]
        if not kernels:
            return Choice(tokens, "dense", "no kernel")
        if not self._tune:
            # The lowest precision is what was asked for; its first kernel is the general one.
            lowest = max(kernels, key=lambda kernel: PRECISIONS.index(kernel.precision))
            return _by_rule(lowest.name, contenders.matrix.density, tokens)
        weight_RK = contenders.weight
        generator = torch.Generator().manual_seed(0)
        x_TK = torch.randn(tokens, weight_RK.shape[1], generator=generator).to(weight_RK.dtype)
        bias = weight_RK.new_zeros(weight_RK.shape[0])
        rivals = [_rival(contenders, kernel, x_TK, bias) for kernel in kernels]
        return self.choose_among(rivals, lambda: F.linear(x_TK, weight_RK, bias))

    def choose_among(self, sparse: Sequence[Rival], dense: Call) -> Choice:
        """The fastest of callables that do the same; the lowest precision comes last."""
        tokens = sparse[0].key.tokens
        if not self._tune:
            lowest = sparse[-1]
            return lowest.unmeasured or _by_rule(lowest.kernel, lowest.key.density, tokens)
        race = None
        if _rank() == 0:
            keys = tuple(one.key for one in sparse)
            race = self._table.get(keys) or self._raced.get(keys)
            if race is None:
                with torch.inference_mode():
                    race = self._timer(dense, *(one.run for one in sparse))
                self._raced[keys] = race
                self._table.put(keys, race)
        return _by_time([one.kernel for one in sparse], tokens, _from_rank_zero(race, len(sparse)))

    def save(self) -> None:
        """Write new measurements to disk."""
        if self._tune and _rank() == 0:
            self._table.save()


def _rival(contenders: Contenders, kernel: Kernel, x_TK: torch.Tensor, bias: torch.Tensor) -> Rival:
    matrix = contenders.matrix
    # A 16-bit layer is another race than a 32-bit one.
    kind = "" if x_TK.dtype is torch.float32 else f"/{x_TK.dtype}"
    pattern, tokens = str(matrix.pattern), len(x_TK)
    key = CostKey(kernel.name + kind, *matrix.shape, pattern, matrix.density, tokens)
    # Packed when it is first run: a race that is on file needs no packing.
    return Rival(kernel.name, key, lambda: contenders.packed(kernel)(x_TK, bias, "none"))


class Forced(Chooser):
    """Takes one kernel wherever it accepts the layer, and dense elsewhere; measures nothing."""

    def __init__(self, kernel: str) -> None:
        super().__init__()
        known = kernel_list("linear").names()
        if kernel not in known:
            raise InputError(f"compile: no kernel is called {kernel!r}. Known: {', '.join(known)}.")
        self._kernel = kernel

    def choose(self, contenders: Contenders, tokens: int) -> Choice:
        """The forced kernel, or dense with the reason."""
        if any(kernel.name == self._kernel for kernel in contenders.kernels):
            return Choice(tokens, self._kernel, "forced")
        why = f"{self._kernel} does not take {contenders.matrix.pattern} at this precision"
        return Choice(tokens, "dense", why)


def _by_time(names: Sequence[str], tokens: int, race: Race) -> Choice:
    dense_us, *kernels = race.us
    times = dict(zip(names, kernels, strict=True))
    ranking = sorted(times, key=times.__getitem__)
    ratios = [dense_us / times[name] if times[name] else float("inf") for name in ranking]
    wins = ratios[0] >= _MARGIN
    why = f"{ratios[0]:.2f}x dense" if wins else f"dense is faster ({ratios[0]:.2f}x)"
    if len(ranking) > 1:
        why += f"; {ranking[1]} {ratios[1]:.2f}x"
    if race.threads is not None:
        why += f"; raced on {race.threads} thread"
    return Choice(
        tokens, ranking[0] if wins else "dense", why, dense_us, times[ranking[0]],
        race.spread, "" if race.load.is_quiet else str(race.load),
    )  # fmt: skip


def _by_rule(kernel: str, density: float, tokens: int) -> Choice:
    limit = _RULE_DENSITY_FEW if tokens < _RULE_FEW_TOKENS else _RULE_DENSITY_MANY
    chosen, sign = (kernel, "<=") if density <= limit else ("dense", ">")
    why = f"fixed rule (GOSSAMER_TUNE=off): density {density:.2f} {sign} {limit}"
    return Choice(tokens, chosen, why)


def _rank() -> int:
    return dist.get_rank() if _is_distributed() else 0


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _from_rank_zero(race: Race | None, num_kernels: int) -> Race:
    """Rank 0's race on every rank: clocks differ, and other kernels round differently."""
    if not _is_distributed() and race is not None:
        return race
    own = race or Race((0.0,) * (num_kernels + 1))
    numbers = [*own.us, own.spread, own.threads or 0, *astuple(own.load)]
    payload = torch.tensor(numbers, dtype=torch.float64)
    dist.broadcast(payload, src=0)
    *times, spread, threads = payload[: num_kernels + 3].tolist()
    others, cores, waiting, stolen, switches, of = payload[num_kernels + 3 :].tolist()
    load = Load(others, int(cores), waiting, stolen, switches, int(of))
    return Race(tuple(times), spread, load, int(threads) or None)
