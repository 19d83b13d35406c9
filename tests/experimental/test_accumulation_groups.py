# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A bank of PSUM has at most one unfinished sum of products, in every kernel that sums over several products.

The documentation of NKI allows several. On trn2, however, a product that begins a sum was seen to clear what is pending
in its bank (public notes of a workshop, October 2026, NKI 0.6: all sums of a bank but the last lost a product). So the
kernels do not rely on it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import (
    cross_entropy_forward,
    ctc_loss_backward,
    ctc_loss_forward,
    distillation_forward,
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
    linear_distillation_backward,
    linear_token_scores_backward,
    linear_token_scores_forward,
)
from nkilib.experimental.loss.linear.backward.geometry import BackwardSizes
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.nki import nisa, nki, nl

PACKAGE = Path(nkilib.__file__).parent
BANK_BYTES = 2048
# Where a tensor that is smaller than a bank lies is the compiler's choice: any two of them may share a bank.
SHARED_BANK = -1


@dataclass
class Group:
    """Products that add up in one place: the numbers of the first and of the last one, among all of the core."""

    place: tuple[int, ...]
    bank: int
    first: int
    last: int


@dataclass
class Products:
    """The products and transposes of a launch, by core, in the order of the program."""

    groups: dict[int, list[Group]] = field(default_factory=lambda: defaultdict(list))
    count: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, dst: nl.NkiTensor, accumulate: bool | None) -> None:
        """A product; without ``accumulate`` it begins a sum where nothing of the tensor is written yet."""
        core = threading.get_ident()
        number = self.count[core]
        self.count[core] += 1
        storage = dst.storage
        bank = storage.number if storage.partition_bytes >= BANK_BYTES else SHARED_BANK
        place = storage.number, dst.offset
        open_groups = [group for group in self.groups[core] if group.place == place]
        if accumulate is False or not open_groups:
            self.groups[core].append(Group(place, bank, number, number))
        else:
            open_groups[-1].last = number

    def interrupted(self) -> list[tuple[Group, Group]]:
        """Pairs of a sum and of another one of its bank that begins before the first has ended."""
        return [
            (group, other)
            for groups in self.groups.values()
            for group in groups
            if group.last > group.first
            for other in groups
            if other.bank == group.bank and group.first < other.first < group.last
        ]

    @property
    def sums(self) -> int:
        """How many sums have several products."""
        return sum(group.last > group.first for groups in self.groups.values() for group in groups)


@contextmanager
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Products]:
    """Yield the products that Tensor is given meanwhile."""
    products, multiply, transpose = Products(), nisa.nc_matmul, nisa.nc_transpose

    def observed_matmul(dst: nl.NkiTensor, *args: Any, accumulate: bool | None = None, **kwargs: Any) -> Any:
        products.add(dst, accumulate)
        return multiply(dst, *args, accumulate=accumulate, **kwargs)

    def observed_transpose(dst: nl.NkiTensor, *args: Any, **kwargs: Any) -> Any:
        if dst.buffer == nl.psum:
            products.add(dst, False)
        return transpose(dst, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(nisa, "nc_matmul", observed_matmul)
        patch.setattr(nisa, "nc_transpose", observed_transpose)
        yield products


def shifted_forward() -> None:
    """A forward that collects rows to recompute, batch after batch, in a list that grows by products."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((600, 700)).astype(ml_dtypes.bfloat16)
    cross_entropy_forward[2](logits, targets_of(rng, logits), 128, 700, exact_maximum=False)


def distillation(beta: float) -> None:
    """A divergence whose rows may be computed again: their list grows by products, too."""
    rng = np.random.default_rng(4)
    student, teacher = (rng.standard_normal((300, 900)).astype(ml_dtypes.bfloat16) for _ in range(2))
    distillation_forward[2](student, teacher, beta=beta)


def targets_of(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return rng.integers(0, logits.shape[1], len(logits), dtype=np.int32)


def linear(positions: int, features: int, classes: int, **options: Any) -> None:
    """The linear forward and backward with their own tilings."""
    rng = np.random.default_rng(1)
    layout = options.pop("weight_layout", "vd")
    x = rng.standard_normal((positions, features)).astype(ml_dtypes.bfloat16)
    weight = (rng.standard_normal((classes, features)) / features**0.5).astype(ml_dtypes.bfloat16)
    if layout == "dv":
        weight = np.ascontiguousarray(weight.T)
    targets, upstream = rng.integers(0, classes, positions, dtype=np.int32), np.ones(positions, np.float32)
    _, lse = linear_cross_entropy_forward[2](x, weight, targets, weight_layout=layout)[:2]
    linear_cross_entropy_backward[2](x, weight, targets, lse, upstream, weight_layout=layout, **options)


def streamed_weight(layout: str) -> None:
    """W^T streams by two batches of tiles of positions, as it does by default for more than 6,144 features."""
    sizes = 700, 700, 600  # two slices of features
    with shrunk(PlanLimits(resident_features=128)):
        plan = BackwardPlan.of(BackwardSizes(*sizes, itemsize=2, has_classes_first=layout == "vd"), 768, 512)
        assert plan.streams_weight and plan.batches_of_tiles == 2
        linear(*sizes, weight_layout=layout, position_block=768, class_block=512)


def streamed_operands() -> None:
    """X^T and W^T stream, in batches of seven tiles of positions and of fewer, by two blocks of positions."""
    sizes = 1900, 700, 600
    with shrunk(PlanLimits(resident_features=128)):
        plan = BackwardPlan.of(BackwardSizes(*sizes, itemsize=2), 1024, 512)
        assert plan.streams_inputs and plan.batches_of_tiles == 2 == plan.position_blocks
        linear(*sizes, position_block=1024, class_block=512)


def one_launch() -> None:
    """Forward and backward of several blocks of positions in a single launch."""
    rng = np.random.default_rng(2)
    x, weight = (rng.standard_normal((rows, 256)).astype(ml_dtypes.bfloat16) for rows in (300, 400))
    targets = rng.integers(0, 400, 300, dtype=np.int32)
    linear_cross_entropy_forward_backward[2](x, weight, targets, grad_scale=1.0 / 300, scratch_bytes=256 * 400 * 4)


def token_scores() -> None:
    """Forward and backward of several target ids of each position."""
    rng = np.random.default_rng(5)
    x, weight = (rng.standard_normal((rows, 256)).astype(ml_dtypes.bfloat16) for rows in (300, 700))
    targets = rng.integers(0, 700, (300, 9), dtype=np.int32)
    _, lse = linear_token_scores_forward[2](x, weight, targets)
    linear_token_scores_backward[2](x, weight, targets, lse, rng.standard_normal((300, 9)).astype(np.float32))


def two_models(beta: float, **options: Any) -> None:
    """The backward of a student and its teacher, whose logits alternate in the same banks."""
    rng = np.random.default_rng(6)
    operands = [
        (rng.standard_normal((rows, features)) / features**0.5).astype(ml_dtypes.bfloat16)
        for features in (300, 400)
        for rows in (300, 900)
    ]
    vectors = [np.ones(300, np.float32) for _ in range(6)]
    linear_distillation_backward[2](*operands, *vectors, beta=beta, **options)


def ctc() -> None:
    """CTC's gradient sums the probabilities of the states of a class, of more labels than a product takes."""
    rng = np.random.default_rng(3)
    steps, labels, classes = 40, 150, 9
    logits = rng.standard_normal((steps, 1, classes))
    log_probs = (logits - np.log(np.exp(logits).sum(2, keepdims=True))).astype(np.float32)
    targets = rng.integers(1, classes, (1, labels), dtype=np.int32)
    lengths = np.full(1, steps, np.int32), np.full(1, labels, np.int32)
    _, nll, alpha = ctc_loss_forward[2](log_probs, targets, *lengths)
    ctc_loss_backward[2](log_probs, targets, *lengths, nll, alpha, np.ones(1, np.float32))


LAUNCHES: dict[str, Callable[[], None]] = {
    "shifted forward": shifted_forward,
    "distillation, divergence": partial(distillation, 0.0),
    "distillation, mixture": partial(distillation, 0.5),
    "linear, kept pieces": partial(linear, 640, 640, 1600),
    "linear, several blocks": partial(linear, 300, 300, 900, position_block=128, class_block=256),
    "linear, W^T streams, [V, D]": partial(streamed_weight, "vd"),
    "linear, W^T streams, [D, V]": partial(streamed_weight, "dv"),
    "linear, X^T and W^T stream": streamed_operands,
    "linear, one launch": one_launch,
    "linear, several target ids": token_scores,
    "linear, two models": partial(two_models, 0.0),
    "linear, several blocks of a mixture": partial(two_models, 0.5, position_block=128, class_block=256),
    "ctc": ctc,
}


def test_every_place_that_sums_products_is_launched() -> None:
    """The lines of kernels with a product that may add to another one: a new one gets a launch above."""
    places = {
        path.relative_to(PACKAGE).as_posix()
        for folder in ("core", "experimental")
        for path in (PACKAGE / folder).rglob("*.py")
        if "nc_matmul(" in path.read_text(encoding="utf-8")
    }
    assert places == {
        "core/rows/recomputation.py",  # the shifted forward, distillation
        "experimental/loss/ctc/gradient.py",
        "experimental/loss/linear_cross_entropy/gradient_columns.py",  # single products from here on
        "experimental/loss/linear/logits.py",  # and sums of the linear kernels
        "experimental/loss/linear/backward/gradient_block.py",
        "experimental/loss/linear/backward/input_gradient.py",
        "experimental/loss/linear/backward/weight_gradient.py",
    }


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_bank_holds_one_unfinished_sum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with observed(monkeypatch) as products:
        LAUNCHES[name]()
    assert products.sums > 0
    assert products.interrupted() == []


def two_sums(dst: str) -> Any:
    """A kernel whose two sums alternate: in one bank, or in a bank each."""

    @nki.jit
    def kernel(operand_hbm: nl.NkiTensor) -> nl.NkiTensor:
        operand_sbuf = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=operand_sbuf, src=operand_hbm)
        banks = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(2)]
        one, two = banks[0][:, 0:128], banks[0][:, 128:256] if dst == "one bank" else banks[1][:, 0:128]
        for step in range(2):
            for sum_psum in (one, two):
                nisa.nc_matmul(dst=sum_psum, stationary=operand_sbuf, moving=operand_sbuf, accumulate=step > 0)
        result_sbuf = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result_sbuf, src=one)
        result_hbm = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result_hbm, src=result_sbuf)
        return result_hbm

    return kernel


@pytest.mark.parametrize(("banks", "interrupted"), [("one bank", 1), ("a bank each", 0)])
def test_sums_that_alternate_in_a_bank_are_seen(banks: str, interrupted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with observed(monkeypatch) as products, nkilib.simulator.using(psum_groups="ignore"):
        two_sums(banks)(np.eye(128, dtype=np.float32))
    assert products.sums == 2
    assert len(products.interrupted()) == interrupted
