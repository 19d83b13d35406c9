# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Groups of products in PSUM against a model that replays every element: random programs, and which lose sums."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa
from nkilib.simulator.machine.levels import forget_warnings
from tests.simulator.kernels import execute, tile
from tests.simulator.machine.test_psum_groups import product, psum


class Part(NamedTuple):
    """A part of one of the tensors.

    Attributes:
        tensor: the index of the tensor in ``TENSORS``.
        top, rows: partitions.
        left, columns, every: the columns, so many of them at equal distances.
    """

    tensor: int
    top: int
    rows: int
    left: int
    columns: int
    every: int

    def of(self, whole: Any) -> Any:
        return whole[self.top : self.top + self.rows, self.left : self.left + self.columns * self.every : self.every]


class Step(NamedTuple):
    """One instruction.

    Attributes:
        kind: `matmul`, `transpose` (by the Tensor engine) or `memset`.
        accumulate: the argument ``accumulate`` of the matmul.
        part: the part that it writes.
    """

    kind: str
    accumulate: bool | None
    part: Part


class Tensor(NamedTuple):
    """A PSUM tensor: its shape, and where the kernel places it."""

    partitions: int
    columns: int
    address: tuple[int, int] | None


# Two in banks of their own, two that share bank 5 in partitions 32 to 63.
TENSORS = (Tensor(128, 1024, None), Tensor(64, 32, None), Tensor(64, 64, (0, 10240)), Tensor(32, 600, (32, 10240)))
BANK = 512  # float32 elements


class Oracle:
    """The state of PSUM element by element: when a matmul wrote it last, and when a group started in its bank."""

    def __init__(self, target: str) -> None:
        self.adds_to_all = target == "trn3"
        self.sums = [np.zeros((tensor.partitions, tensor.columns), np.int64) for tensor in TENSORS]
        self.others = [np.zeros((tensor.partitions, tensor.columns), np.bool_) for tensor in TENSORS]
        self.placed = np.zeros((128, 8), np.int64)
        self.own = [np.zeros((128, 8), np.int64) for _ in TENSORS]

    def starts(self, part: Part) -> tuple[npt.NDArray[np.int64], Any]:
        """When groups started, by partition and bank, and the partitions and banks of the elements of a part."""
        tensor = TENSORS[part.tensor]
        top, byte = tensor.address or (0, 0)
        table = self.own[part.tensor] if tensor.address is None else self.placed
        rows = top + part.top + np.arange(part.rows)
        banks = (byte // 4 + part.left + part.every * np.arange(part.columns)) // BANK
        return table, np.ix_(rows, banks)

    def is_added_to(self, part: Part) -> npt.NDArray[np.bool_]:
        """Return which elements a matmul that may add does add to."""
        result = part.of(self.sums[part.tensor]) > 0
        return result | part.of(self.others[part.tensor]) if self.adds_to_all else result

    def run(self, step: Step, now: int) -> bool:
        """Whether the step loses sums on hardware."""
        table, places = self.starts(step.part)
        sums, others = step.part.of(self.sums[step.part.tensor]), step.part.of(self.others[step.part.tensor])
        is_lost = False
        if step.kind == "memset":
            sums[...], others[...] = 0, True
            return False
        if step.kind == "matmul" and step.accumulate is not False and self.is_added_to(step.part).any():
            is_lost = bool(((sums > 0) & (sums < table[places])).any())
        else:
            table[places] = now
        sums[...], others[...] = (0, True) if step.kind == "transpose" else (now, False)
        return is_lost


@st.composite
def parts(draw: st.DrawFn, among: Sequence[int]) -> Part:
    """A part of a tensor that a matmul may write: in one bank, from a partition on at which an access may start."""
    at = draw(st.sampled_from(among))
    tensor = TENSORS[at]
    top = draw(st.sampled_from([start for start in (0, 32, 64, 96) if start < tensor.partitions]))
    most = min({0: 128, 32: 32, 64: 64, 96: 32}[top], tensor.partitions - top)
    rows = draw(st.sampled_from([count for count in (1, 32, 64, 128) if count <= most]))
    every = draw(st.sampled_from([1, 1, 1, 2]))
    left = draw(st.sampled_from([start for start in (0, 8, 13, 16, 500, 512, 520) if start < tensor.columns - 4]))
    end = min((left // BANK + 1) * BANK, tensor.columns)
    fitting = [count for count in (4, 8, 16, 32) if count <= (end - left + every - 1) // every]
    return Part(at, top, rows, left, draw(st.sampled_from(fitting or [1])), every)


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Instructions on few parts, so that they come back to each."""
    among = draw(st.sampled_from([(0,), (2, 3), range(len(TENSORS))]))
    pool = draw(st.lists(parts(among), min_size=2, max_size=5, unique=True))
    kinds = st.sampled_from([*["matmul"] * 8, "memset", "transpose"])
    step = st.builds(Step, kinds, st.sampled_from([None, True, False]), st.sampled_from(pool))
    return draw(st.lists(step, min_size=16, max_size=24))


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@given(program=programs())
def test_random_programs_are_warned_of_where_a_model_of_every_element_loses_sums(
    target: str, program: list[Step]
) -> None:
    oracle = Oracle(target)
    results: list[bool] = []
    expected: list[bool] = []

    def body() -> None:
        tensors = [psum(tensor.partitions, tensor.columns, address=tensor.address) for tensor in TENSORS]
        for number, given_step in enumerate(program, 1):
            step = given_step
            if step.accumulate and step.kind == "matmul" and not oracle.is_added_to(step.part).all():
                step = step._replace(accumulate=None)  # True is refused for another reason
            dst = step.part.of(tensors[step.part.tensor])
            before = len(caught)
            forget_warnings()
            if step.kind == "matmul":
                product(dst, step.accumulate)
            elif step.kind == "memset":
                nisa.memset(dst, 0)
            else:
                nisa.nc_transpose(dst, tile(dst.shape[1], dst.shape[0]), engine=nisa.engine.tensor)
            results.append(len(caught) > before)
            expected.append(oracle.run(step, number))

    with (
        warnings.catch_warnings(record=True) as caught,
        nkilib.simulator.using(capacity="ignore", psum_groups="warn"),  # capacity: of tensors that share a bank
    ):
        warnings.simplefilter("always")
        execute(body, target)
    assert results == expected
    event(f"{sum(results)} lost")
