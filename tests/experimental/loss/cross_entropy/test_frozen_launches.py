# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""No launch may become slower than it was frozen, and nothing that was accepted may be refused.

``python -m tests.experimental.loss.cross_entropy.test_frozen_launches`` models all launches and writes the two files in
the folder ``frozen``: the modelled times, and the switches at which a tiling turns from accepted to refused. They were
written once, before the plain and the extended kernels became one; a change that is meant to make a launch slower
writes them again, and says why.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from nkilib.experimental.loss import (
    choose_tiling,
    cross_entropy_backward,
    cross_entropy_forward,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)
from nkilib.simulator import AS_ISSUED, profile, spec, using

TIMES = Path(__file__).with_name("frozen") / "times.json"
BOUNDARIES = Path(__file__).with_name("frozen") / "boundaries.json"

VOCABULARY = 128_256
POSITIONS = (1, 200, 4096)
DTYPES = ("bfloat16", "float32")
# Wide enough that no boundary is that of the vocabulary.
WIDE_VOCABULARY = 200_000

KERNELS = {
    ("forward", False): cross_entropy_forward,
    ("forward", True): extended_cross_entropy_forward,
    ("backward", False): cross_entropy_backward,
    ("backward", True): extended_cross_entropy_backward,
}

_RECIPE: dict[str, Any] = {"label_smoothing": 0.1, "logit_softcap": 30.0, "lse_square_scale": 1e-4}
_RESULTS = {"with_argmax": True, "with_entropy": True, "with_distance_sum": True, "with_log_sum": True}
_UPSTREAM = {"grad_lse_hbm": "[N]", "maximum_hbm": "[N]", "log_sum_hbm": "[N]"}
_SHARD = {"first_class": 1000, "num_classes": 200_000}

# By name: further arguments of the kernel; "[N]" and "[V]" stand for float32 vectors, "[N, V]" for float32
# probabilities. None: the plain kernel.
FORWARDS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "extended": {},
    "class weights": {"class_weight_hbm": "[V]"},
    "smoothing": {"label_smoothing": 0.1},
    "softcap": {"logit_softcap": 30.0},
    "z-loss": {"lse_square_scale": 1e-4},
    "argmax": {"with_argmax": True},
    "entropy": {"with_entropy": True},
    "log-sum": {"with_log_sum": True},
    "shard": {**_SHARD, "with_distance_sum": True},
    "probabilities": {"targets_hbm": "[N, V]"},
    "all": {**_RECIPE, **_RESULTS, "class_weight_hbm": "[V]"},
}
BACKWARDS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "extended": {},
    "class weights": {"class_weight_hbm": "[V]"},
    "smoothing": {"label_smoothing": 0.1},
    "softcap": {"logit_softcap": 30.0},
    "probabilities": {"targets_hbm": "[N, V]"},
    "all upstream": {**_UPSTREAM, "grad_logprob_hbm": "[N]", "lse_square_scale": 1e-4},
    "all": {**_RECIPE, **_UPSTREAM, "grad_logprob_hbm": "[N]", "class_weight_hbm": "[V]"},
}
CASES = {"forward": FORWARDS, "backward": BACKWARDS}

# Every switch that takes a tile of a chunk's size beside the chunk buffers.
_FORWARD_SWITCHES = ("class weights", "smoothing", "softcap", "entropy", "distances", "probabilities")
_BACKWARD_SWITCHES = ("class weights", "smoothing", "softcap", "probabilities")
_OF_SWITCH = {**FORWARDS, "distances": {"with_distance_sum": True}}


@dataclass(frozen=True)
class Launch:
    """A launch on two cores of trn2, and how it is cut up."""

    direction: str
    case: str
    positions: int
    dtype: str
    positions_per_batch: int
    chunk_size: int

    def __str__(self) -> str:
        return f"{self.direction}, {self.case}, {self.positions} x {self.dtype}"

    def time_us(self) -> float:
        """Modelled, not measured."""
        options = CASES[self.direction][self.case]
        tiling = {"positions_per_batch": self.positions_per_batch, "chunk_size": self.chunk_size}
        return _launch(self.direction, options, self.positions, VOCABULARY, self.dtype, tiling)


@dataclass(frozen=True)
class Boundary:
    """The largest chunk that a launch accepts."""

    target: str
    direction: str
    switches: tuple[str, ...] | None
    dtype: str
    positions_per_batch: int
    chunk_size: int

    def accepts(self, chunk_size: int) -> bool:
        """Whether the kernel runs with such a chunk; it is laid out in SBUF, too."""
        options = _options_of(self.switches)
        tiling = {"positions_per_batch": self.positions_per_batch, "chunk_size": chunk_size}
        with using(target=self.target):
            try:
                _launch(self.direction, options, self.positions_per_batch, WIDE_VOCABULARY, self.dtype, tiling)
            except AssertionError as refusal:
                assert "chunk" in str(refusal), refusal
                return False
        return True


def launches() -> Iterator[Launch]:
    """All 120, tiled as the chooser says."""
    for direction, cases in CASES.items():
        for (case, options), positions, dtype in product(cases.items(), POSITIONS, DTYPES):
            extended = options is not None
            tiling = choose_tiling(positions, VOCABULARY, dtype, direction, extended=extended)
            yield Launch(direction, case, positions, dtype, *tiling[:2])


def boundaries() -> Iterator[Boundary]:
    """Every set of switches, type and generation, with the batch sizes between which the limits change."""
    for direction, names in (("forward", _FORWARD_SWITCHES), ("backward", _BACKWARD_SWITCHES)):
        sets = [
            tuple(name for name, is_on in zip(names, on, strict=True) if is_on)
            for on in product((0, 1), repeat=len(names))
        ]
        for target, switches, dtype, rows in product(("trn2", "trn3"), (None, *sets), DTYPES, (1, 128)):
            yield _searched(Boundary(target, direction, switches, dtype, rows, 1))


def _searched(boundary: Boundary) -> Boundary:
    accepted, refused = 1, 65_536
    while refused - accepted > 1:
        middle = (accepted + refused) // 2
        if boundary.accepts(middle):
            accepted = middle
        else:
            refused = middle
    return Boundary(**{**asdict(boundary), "chunk_size": accepted})


def _options_of(switches: tuple[str, ...] | None) -> dict[str, Any] | None:
    if switches is None:
        return None
    options: dict[str, Any] = {}
    for name in switches:
        options.update(_OF_SWITCH[name] or {})
    return options


def _launch(
    direction: str, options: dict[str, Any] | None, positions: int, vocabulary: int, dtype: str, tiling: dict[str, int]
) -> float:
    shapes = {
        "[N]": spec((positions,), "float32"),
        "[V]": spec((vocabulary,), "float32"),
        "[N, V]": spec((positions, vocabulary), "float32"),
    }
    extended = options is not None
    inputs = {
        name: shapes.get(value, value) if isinstance(value, str) else value for name, value in (options or {}).items()
    }
    targets = inputs.pop("targets_hbm", spec((positions,), "int32"))
    arrays = [spec((positions, vocabulary), dtype), targets]
    if direction == "backward":
        arrays += [shapes["[N]"], shapes["[N]"]] if extended else [shapes["[N]"]]
    return profile(
        KERNELS[direction, extended][2], *arrays, trips="none", parameters=AS_ISSUED, dtype=dtype, **tiling, **inputs
    ).time_us


def frozen_launches() -> list[tuple[Launch, float]]:
    """The launches, and what they took, in microseconds."""
    return [(Launch(**row["launch"]), row["time_us"]) for row in json.loads(TIMES.read_text())]


def frozen_boundaries() -> list[Boundary]:
    """Return the boundaries that were accepted."""
    rows = json.loads(BOUNDARIES.read_text())
    return [Boundary(**{**row, "switches": row["switches"] and tuple(row["switches"])}) for row in rows]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


# A long launch hides what comes before and after its chunks; a short one is little else.
_ALLOWED = {1: 1.01, 200: 1.01, 4096: 1.005}


def test_one_hundred_and_twenty_launches_are_frozen() -> None:
    assert len({str(launch) for launch, _ in frozen_launches()}) == 120


def _cases() -> list[Any]:
    """All launches; the long ones of a single option are left to ``-m sweep``."""
    return [
        pytest.param(
            launch,
            frozen_us,
            id=str(launch),
            marks=[pytest.mark.sweep] if launch.positions == 4096 and launch.case not in ("plain", "all") else [],
        )
        for launch, frozen_us in frozen_launches()
    ]


@pytest.mark.parametrize(("launch", "frozen_us"), _cases())
def test_a_launch_is_not_slower_than_frozen(launch: Launch, frozen_us: float) -> None:
    assert 0.0 < launch.time_us() <= _ALLOWED[launch.positions] * frozen_us


def _by_kernel() -> dict[str, list[Boundary]]:
    groups: dict[str, list[Boundary]] = defaultdict(list)
    for boundary in frozen_boundaries():
        groups[f"{boundary.target} {boundary.direction} {boundary.dtype}"].append(boundary)
    return groups


def _shows_a_tile(boundary: Boundary) -> bool:
    """Tell whether a boundary is of the plain kernel, no switch, one or all: each switch adds its own tile."""
    most = 6 if boundary.direction == "forward" else 4
    return boundary.switches is None or len(boundary.switches) in (0, 1, most)


@pytest.mark.parametrize(
    "boundaries",
    [
        pytest.param(boundaries, id=name, marks=[pytest.mark.sweep] if name.startswith("trn3") else [])
        for name, boundaries in _by_kernel().items()
    ],
)
def test_what_was_accepted_is_accepted(boundaries: list[Boundary]) -> None:
    few = [boundary for boundary in boundaries if _shows_a_tile(boundary)]
    assert len(boundaries) >= 34 and len(few) >= 14
    assert [boundary for boundary in few if not boundary.accepts(boundary.chunk_size)] == []


@pytest.mark.sweep
@pytest.mark.parametrize("boundaries", _by_kernel().values(), ids=_by_kernel().keys())
def test_what_was_accepted_is_accepted_with_every_set_of_switches(boundaries: list[Boundary]) -> None:
    others = [boundary for boundary in boundaries if not _shows_a_tile(boundary)]
    assert [boundary for boundary in others if not boundary.accepts(boundary.chunk_size)] == []


@pytest.mark.parametrize("boundaries", _by_kernel().values(), ids=_by_kernel().keys())
def test_beyond_the_hardware_a_chunk_is_refused(boundaries: list[Boundary]) -> None:
    """65,536 elements are more than an instruction takes, whatever else would fit."""
    assert [boundary for boundary in boundaries if boundary.accepts(65_536)] == []


if __name__ == "__main__":
    _write(TIMES, [{"launch": asdict(launch), "time_us": launch.time_us()} for launch in launches()])
    _write(BOUNDARIES, [asdict(boundary) for boundary in boundaries()])
