# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels over rows, a call of each that is accepted, and what a call that is refused must leave as it was.

A new kernel is a row of ``KERNELS``: the refusals that all of them share (test_shared_refusals.py) then hold for it.
What it alone refuses is a table of :class:`Refusal` in its own tests, held by :func:`assert_refused` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.experimental import loss, softmax
from nkilib.nki import nl
from nkilib.verify.kernels.elementwise import ENTRIES, ElementwiseEntry
from nkilib.verify.kernels.rowwise import ENTRIES as ROWWISE_KINDS
from nkilib.verify.kernels.rowwise import RowwiseEntry

Arguments = dict[str, Any]
ROWS, COLUMNS = 3, 100
# Of a weight, beside a matrix of `COLUMNS` features.
CLASSES = 20


@dataclass(frozen=True)
class Kernel:
    """A kernel, and how it calls what all of them have.

    Attributes:
        function: the function that is launched.
        further: a function that returns the arguments beside matrix and tiling, for a number of rows and of columns.
        words: the words of its messages for a matrix, for a row of it, and for the argument for rows at a time.
    """

    function: Any
    further: Callable[[int, int], Arguments]
    words: dict[str, str]

    @property
    def name(self) -> str:
        """The name with which the kernel's messages begin."""
        return str(self.function.__name__)

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call that works on such a matrix, in several batches and chunks."""
        rows, columns = shape[-2:]
        return {
            self.words["matrix"]: np.ones(shape, np.float32),
            self.words["rows_per_batch"]: 2,
            "chunk_size": min(2 * columns // 5, 1000),
            "dtype": nl.float32,
            **self.further(rows, columns),
        }

    def launch(self, arguments: Arguments, cores: int | None = None) -> Any:
        """Without a grid, or on so many cores."""
        return (self.function if cores is None else self.function[cores])(**arguments)


def _of_classes(**vectors: float) -> Callable[[int, int], Arguments]:
    """Targets, and float32 vectors of the given values."""

    def further(rows: int, columns: int) -> Arguments:
        inputs = {name: np.full(rows, value, np.float32) for name, value in vectors.items()}
        return {"targets_hbm": np.zeros(rows, np.int32), **inputs}

    return further


def _with_scale(rows: int, columns: int) -> Arguments:
    """Targets, and the scale of the sum."""
    return {**_of_classes()(rows, columns), "grad_scale": 1.0}


_OF_INPUTS = {"matrix": "input_hbm"}
_OF_LOSSES = {"matrix": "logits_hbm", "row": "vocabulary", "rows_per_batch": "positions_per_batch"}
_LSE = float(np.log(COLUMNS))
_LSE_OF_PRODUCTS = float(COLUMNS + np.log(CLASSES))

KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(loss.cross_entropy_forward, _of_classes(), _OF_LOSSES),
        Kernel(loss.cross_entropy_backward, _of_classes(lse_state_hbm=_LSE), _OF_LOSSES),
        Kernel(loss.extended_cross_entropy_forward, _of_classes(), _OF_LOSSES),
        Kernel(loss.extended_cross_entropy_backward, _of_classes(lse_hbm=_LSE, grad_loss_hbm=1.0), _OF_LOSSES),
    )
}


@dataclass(frozen=True)
class LinearKernel(Kernel):
    """A kernel over an input and a weight; a matrix is the input, of positions and features."""

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call that works on such an input, and on ``CLASSES`` classes."""
        rows, features = shape[-2:]
        return {
            self.words["matrix"]: np.ones(shape, np.float32),
            "weight_hbm": np.ones((CLASSES, features), np.float32),
            **self.further(rows, CLASSES),
        }


LINEAR_KERNELS = {
    kernel.name: kernel
    for kernel in (
        LinearKernel(loss.linear_cross_entropy_forward, _of_classes(), _OF_INPUTS),
        LinearKernel(
            loss.linear_cross_entropy_backward, _of_classes(lse_hbm=_LSE_OF_PRODUCTS, grad_loss_hbm=1.0), _OF_INPUTS
        ),
        LinearKernel(loss.linear_cross_entropy_forward_backward, _with_scale, _OF_INPUTS),
    )
}


@dataclass(frozen=True)
class LogProbabilityKernel(Kernel):
    """A kernel over log-probabilities, which chooses its tiling; a matrix is the input."""

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call that works on such an input."""
        return {self.words["matrix"]: np.ones(shape, np.float32), **self.further(*shape[:2])}


def _of_each(rows: int, columns: int) -> Arguments:
    """A target for each element."""
    return {"target_hbm": np.ones((rows, columns), np.float32)}


_GRADIENT = {"grad_loss_hbm": np.ones(1, np.float32)}
LOG_PROBABILITY_KERNELS = {
    kernel.name: kernel
    for kernel in (
        LogProbabilityKernel(loss.nll_loss_forward, _of_classes(), _OF_INPUTS),
        LogProbabilityKernel(
            loss.nll_loss_backward,
            lambda rows, columns: {
                **_of_classes()(rows, columns),
                **_GRADIENT,
                "total_weight_hbm": np.ones(1, np.float32),
            },
            _OF_INPUTS,
        ),
        LogProbabilityKernel(loss.kl_div_forward, _of_each, _OF_INPUTS),
        LogProbabilityKernel(
            loss.kl_div_backward, lambda rows, columns: {**_of_each(rows, columns), **_GRADIENT}, _OF_INPUTS
        ),
    )
}


def _of_labels(rows: int, columns: int) -> Arguments:
    """No target in any row."""
    return {"targets_hbm": np.full((rows, columns), -1, np.int32)}


MARGIN_KERNELS = {
    kernel.name: kernel
    for kernel in (
        LogProbabilityKernel(loss.multi_margin_loss_forward, _of_classes(), _OF_INPUTS),
        LogProbabilityKernel(
            loss.multi_margin_loss_backward,
            lambda rows, columns: {**_of_classes()(rows, columns), **_GRADIENT},
            _OF_INPUTS,
        ),
        LogProbabilityKernel(loss.multilabel_margin_loss_forward, _of_labels, _OF_INPUTS),
        LogProbabilityKernel(
            loss.multilabel_margin_loss_backward,
            lambda rows, columns: {**_of_labels(rows, columns), **_GRADIENT},
            _OF_INPUTS,
        ),
    )
}


@dataclass(frozen=True)
class ElementwiseKernel(Kernel):
    """A kernel of an elementwise loss; a matrix is its first tensor."""

    kind: ElementwiseEntry

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call that works on tensors of such a shape."""
        return {**self.kind.arguments(self.kind.made(shape)), **self.further(*shape[:2])}


def _elementwise(kind: ElementwiseEntry) -> Iterator[ElementwiseKernel]:
    reductions = "mean, sum, none, batchmean" if kind.name.startswith("kl_div") else "mean, sum, none"
    words = {"matrix": f"{next(iter(kind.tensors))}_hbm", "reductions": reductions}
    yield ElementwiseKernel(kind.forward, lambda rows, columns: {}, words, kind)
    yield ElementwiseKernel(kind.backward, lambda rows, columns: _GRADIENT, words, kind)
    if kind.both is not None:
        yield ElementwiseKernel(kind.both, lambda rows, columns: _GRADIENT, words, kind)


ELEMENTWISE_KERNELS = {kernel.name: kernel for kind in ENTRIES for kernel in _elementwise(kind)}


@dataclass(frozen=True)
class RowwiseKernel(Kernel):
    """A kernel of a row-wise loss; a matrix is its first tensor."""

    kind: RowwiseEntry

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call that works on tensors of such a shape."""
        tensors = self.kind.made(shape)
        if self.function is self.kind.forward:
            return self.kind.arguments(tensors)
        return self.kind.backward_arguments(tensors, np.ones(1, np.float32))


def _rowwise(kind: RowwiseEntry) -> Iterator[RowwiseKernel]:
    words = {"matrix": f"{next(iter(kind.tensors))}_hbm"}
    yield RowwiseKernel(kind.forward, lambda rows, columns: {}, words, kind)
    yield RowwiseKernel(kind.backward, lambda rows, columns: {}, words, kind)


ROWWISE_KERNELS = {kernel.name: kernel for kind in ROWWISE_KINDS for kernel in _rowwise(kind)}


@dataclass(frozen=True)
class CtcKernel(Kernel):
    """A kernel of CTC; a matrix is the log-probabilities of each of one step of time."""

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call that works on such log-probabilities."""
        rows = int(np.prod(shape[:-1]))
        lengths = np.ones(rows, np.int32)
        return {
            self.words["matrix"]: np.zeros((1, rows, shape[-1]), np.float32),
            "targets_hbm": np.ones((rows, 1), np.int32),
            "input_lengths_hbm": lengths,
            "target_lengths_hbm": lengths.copy(),
            **self.further(rows, shape[-1]),
        }


def _of_ctc_forward(rows: int, columns: int) -> Arguments:
    return {"nll_hbm": np.ones(rows, np.float32), "alpha_hbm": np.zeros((1, rows, 3), np.float32), **_GRADIENT}


_OF_LOG_PROBS = {"matrix": "log_probs_hbm"}
CTC_KERNELS = {
    kernel.name: kernel
    for kernel in (
        CtcKernel(loss.ctc_loss_forward, lambda rows, columns: {}, _OF_LOG_PROBS),
        CtcKernel(loss.ctc_loss_backward, _of_ctc_forward, _OF_LOG_PROBS),
    )
}


@dataclass(frozen=True)
class DistillationKernel(Kernel):
    """A kernel over the logits of two models; a matrix is the student's."""

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call that works on such logits."""
        ones = np.ones(shape, np.float32)
        return {self.words["matrix"]: ones, "teacher_hbm": ones.copy(), **self.further(*shape[:2])}


_OF_STUDENTS = {"matrix": "student_hbm"}
_SAVED = ("moment", "student_shift", "student_sum", "teacher_shift", "teacher_sum", "grad_loss")
DISTILLATION_KERNELS = {
    kernel.name: kernel
    for kernel in (
        DistillationKernel(loss.distillation_forward, lambda rows, columns: {}, _OF_STUDENTS),
        DistillationKernel(
            loss.distillation_backward,
            lambda rows, columns: {f"{name}_hbm": np.ones(rows, np.float32) for name in _SAVED},
            _OF_STUDENTS,
        ),
    )
}


@dataclass(frozen=True)
class PairKernel(Kernel):
    """A kernel over hidden states and output weights of two models; a matrix is the student's input."""

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call that works on such an input, and on a teacher of half as many features."""
        rows, features = shape[-2:]
        return {
            self.words["matrix"]: np.ones(shape, np.float32),
            "student_weight_hbm": np.ones((CLASSES, features), np.float32),
            "teacher_input_hbm": np.ones((rows, features // 2), np.float32),
            "teacher_weight_hbm": np.ones((CLASSES, features // 2), np.float32),
            **self.further(rows, CLASSES),
        }


_OF_STUDENT_INPUTS = {"matrix": "student_input_hbm"}
# Of products of ones.
_MAXIMA = {"student_maximum_hbm": float(COLUMNS), "teacher_maximum_hbm": float(COLUMNS // 2)}
_SAVED_OF_PAIR = ("moment_hbm", *_MAXIMA, "student_log_sum_hbm", "teacher_log_sum_hbm", "grad_divergence_hbm")
PAIR_KERNELS = {
    kernel.name: kernel
    for kernel in (
        PairKernel(loss.linear_distillation_forward, lambda rows, columns: {}, _OF_STUDENT_INPUTS),
        PairKernel(
            loss.linear_distillation_backward,
            lambda rows, columns: {name: np.full(rows, _MAXIMA.get(name, 1.0), np.float32) for name in _SAVED_OF_PAIR},
            _OF_STUDENT_INPUTS,
        ),
    )
}


@dataclass(frozen=True)
class SoftmaxKernel(Kernel):
    """A kernel along an axis; a matrix is x, or the upstream gradient."""

    def accepted(self, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> Arguments:
        """The arguments of a call along the last axis."""
        arguments = {
            self.words["matrix"]: np.ones(shape, np.float32),
            "axis": -1,
            "dtype": nl.float32,
            "chunk_size": 40,
        }
        return arguments | self.further(*shape[:2])


def _of_outputs(rows: int, columns: int) -> Arguments:
    """An output, and the gradient in the place of the upstream one."""
    return {"output_hbm": np.ones((rows, columns), np.float32), "inplace": True}


_OF_GRADIENTS = {"matrix": "grad_hbm"}
SOFTMAX_KERNELS = {
    kernel.name: kernel
    for kernel in (
        SoftmaxKernel(softmax.softmax_forward, lambda rows, columns: {}, {"matrix": "x_hbm"}),
        SoftmaxKernel(softmax.log_softmax_forward, lambda rows, columns: {}, {"matrix": "x_hbm"}),
        SoftmaxKernel(softmax.softmax_backward, _of_outputs, _OF_GRADIENTS),
        SoftmaxKernel(softmax.log_softmax_backward, _of_outputs, _OF_GRADIENTS),
    )
}


@dataclass(frozen=True)
class Refusal:
    """A call that differs from an accepted one in one point.

    Attributes:
        name: the name in the test's id.
        message: the message, after the kernel's name; `{matrix}` and the like are words of the kernel.
        arguments: the arguments that differ; their names may have such words.
        kernels: names of those that refuse it; None for all that have these arguments.
        shape: the shape of the accepted call's matrix.
        target: generation.
    """

    name: str
    message: str
    arguments: Arguments = field(default_factory=dict)
    kernels: tuple[str, ...] | None = None
    shape: tuple[int, ...] = (ROWS, COLUMNS)
    target: str = "trn2"

    def arguments_of(self, kernel: Kernel) -> Arguments:
        """Return the arguments in which a call of the kernel differs."""
        return {name.format(**kernel.words): value for name, value in self.arguments.items()}

    def concerns(self, kernel: Kernel) -> bool:
        """Whether the kernel refuses it."""
        if self.kernels is not None:
            return kernel.name in self.kernels
        return self.arguments_of(kernel).keys() <= signature(kernel.function.func).parameters.keys()

    def expected(self, kernel: Kernel) -> str:
        """The whole message."""
        return f"{kernel.name}: {self.message.format(**kernel.words)}"


Case = tuple[Refusal, Kernel]


def cases(refusals: Iterable[Refusal], kernels: Mapping[str, Kernel] = KERNELS) -> list[Case]:
    """Each refusal with each kernel that it concerns."""
    return [(refusal, kernel) for refusal in refusals for kernel in kernels.values() if refusal.concerns(kernel)]


def parametrized(refusals: Iterable[Refusal], kernels: Mapping[str, Kernel] = KERNELS) -> Any:
    """Run a test for each case, on one core and on two."""
    params = [pytest.param(*case, id=f"{case[0].name}-{case[1].name}") for case in cases(refusals, kernels)]
    assert len(params) >= len(list(refusals)), "a refusal that concerns no kernel"

    def mark(test: Any) -> Any:
        test = pytest.mark.parametrize(("refusal", "kernel"), params)(test)
        return pytest.mark.parametrize("cores", [None, 2])(test)

    return mark


def assert_refused(refusal: Refusal, kernel: Kernel, cores: int | None) -> None:
    """Assert that a call raises its whole message before the first instruction, and leaves every array as it was."""
    if refusal.target == "trn1" and cores == 2:
        pytest.skip("trn1 has no logical NeuronCore of two: the launch itself is refused")
    arguments = {**kernel.accepted(refusal.shape), **refusal.arguments_of(kernel)}
    before = {name: value.copy() for name, value in arguments.items() if isinstance(value, np.ndarray)}
    with (
        nkilib.simulator.using(target=refusal.target),
        nkilib.simulator.recording() as record,
        pytest.raises(AssertionError) as caught,
    ):
        kernel.launch(arguments, cores)
    assert str(caught.value) == refusal.expected(kernel)
    assert not record.instruction_counts, "an instruction ran before the refusal"
    for name, array in before.items():
        np.testing.assert_array_equal(arguments[name], array)


def outcome(refusal: Refusal, kernel: Kernel) -> str:
    """The message with which the call is refused, or what it returned instead: without pytest, for `python -O`."""
    arguments = {**kernel.accepted(refusal.shape), **refusal.arguments_of(kernel)}
    try:
        with nkilib.simulator.using(target=refusal.target):
            returned = kernel.launch(arguments)
    except AssertionError as error:
        return str(error)
    return f"accepted: {returned}"
