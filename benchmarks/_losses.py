# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses that are measured: their inputs, their passes in ``nkilib.torch`` and in torch, their memory.

``python -m benchmarks._losses NAME SHAPE DTYPE PASS`` runs one pass of ours and prints what memory it took, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from types import ModuleType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

import nkilib.torch
from benchmarks._memory import MemoryUse, measure_in_process, peak_resident_bytes, resident_bytes
from nkilib.core.host.loss import Sample
from nkilib.experimental.loss import registry
from nkilib.experimental.loss.skeletons.elementwise.host import ElementwiseLoss
from nkilib.experimental.loss.skeletons.rowwise.host import RowwiseLoss

FORWARD, BACKWARD = "forward", "backward"
TYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}

Shape = tuple[int, ...]
# Makes a tensor for a loss of a shape, filled in place, so that there is no second copy of it. The type is that of the
# floating tensors.
Make = Callable[[Shape, torch.dtype, torch.Generator], Tensor]


def _normal(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.empty(shape, dtype=dtype).normal_(generator=generator)


def _probabilities(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.empty(shape, dtype=dtype).uniform_(0.0625, 0.9375, generator=generator)


def _positive(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.empty(shape, dtype=dtype).uniform_(0.125, 2.0, generator=generator)


def _signs(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.empty(shape, dtype=dtype).uniform_(-1.0, 1.0, generator=generator).sign_()


def _signs_of_rows(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return _signs(shape[:1], dtype, generator)


def _classes(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Make one class per row."""
    return torch.randint(shape[1], shape[:1], generator=generator)


def _lists_of_classes(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Make at most eight classes per row, which end at the first -1."""
    targets = torch.full(shape, -1)
    targets[:, :_CLASSES_OF_LIST] = torch.randint(-1, shape[1], (shape[0], _CLASSES_OF_LIST), generator=generator)
    return targets


def _log_probabilities(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return _normal(shape, dtype, generator).log_softmax(-1)


def _labels(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Make labels for sequences of [T, N, C], T / 4 each, without the blank 0."""
    steps, sequences, classes = shape
    return torch.randint(1, classes, (sequences, steps // _STEPS_OF_LABEL), generator=generator)


def _input_lengths(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.full((shape[1],), shape[0])


def _target_lengths(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.full((shape[1],), shape[0] // _STEPS_OF_LABEL)


_CLASSES_OF_LIST, _STEPS_OF_LABEL = 8, 4
_MATRIX: Final = (4096, 4096)


@dataclass(frozen=True)
class MeasuredLoss:
    """A loss of ``torch.nn.functional``.

    Attributes:
        name: the name of the function, there and in ``nkilib.torch``.
        makes: a function for each tensor that makes it; the gradient is taken with respect to the first one.
        options: further arguments.
        shape, quick_shape: the shape of the first tensor.
        in_bfloat16: torch has it in this type.
    """

    name: str
    makes: tuple[Make, ...] = (_normal, _normal)
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: Shape = _MATRIX
    quick_shape: Shape = (40, 70)
    in_bfloat16: bool = True


# What torch makes of the numbers that rows name; shapes and types of other tensors are made by hand below.
_MAKES: Final[Mapping[Sample, Make]] = {
    Sample.NUMBERS: _normal,
    Sample.LOGITS: _normal,
    Sample.WIDE_LOGITS: _normal,
    Sample.POSITIVE: _positive,
    Sample.PROBABILITIES: _probabilities,
    Sample.LABELS: _probabilities,
    Sample.SIGNS: _signs,
    Sample.SIMILARITIES: _signs,
    Sample.SIMILARITIES_OF_ROWS: _signs_of_rows,
}
_BY_HAND: Final = {
    loss.name: loss
    for loss in (
        MeasuredLoss("kl_div", options={"log_target": True, "reduction": "sum"}),  # its mean warns
        MeasuredLoss("nll_loss", (_normal, _classes)),
        MeasuredLoss("multi_margin_loss", (_normal, _classes), in_bfloat16=False),
        MeasuredLoss("multilabel_margin_loss", (_normal, _lists_of_classes), in_bfloat16=False),
        MeasuredLoss(
            "ctc_loss",
            (_log_probabilities, _labels, _input_lengths, _target_lengths),
            shape=(512, 64, 512),
            quick_shape=(24, 3, 17),
            in_bfloat16=False,
        ),
    )
}


def _measured() -> Iterator[MeasuredLoss]:
    """Yield the losses of torch without benchmarks of their own, with the tensors of the first form of their entries.

    Losses that torch does not have are left out: they have nothing to be measured beside.
    """
    for loss in registry.LOSSES:
        if loss.name in _BY_HAND:
            yield _BY_HAND[loss.name]
        elif isinstance(loss, ElementwiseLoss | RowwiseLoss) and hasattr(F, loss.name):
            yield MeasuredLoss(loss.name, tuple(_MAKES[sample] for sample in loss.forms[0].samples.values()))


# By name.
LOSSES: Final = {loss.name: loss for loss in _measured()}


@dataclass(frozen=True)
class LossCase:
    """A loss with a problem size.

    Attributes:
        name: the name of the loss, a key of ``LOSSES``.
        shape: the shape of its first tensor.
        dtype_name: the type of its floating tensors, a key of ``TYPES``.
    """

    name: str
    shape: tuple[int, ...]
    dtype_name: str

    def __str__(self) -> str:
        return f"{self.name}, {list(self.shape)}, {self.dtype_name}"


class LossInputs:
    """The tensors of a case, the same memory for both libraries."""

    def __init__(self, loss: MeasuredLoss, tensors: list[Tensor]) -> None:
        self._loss, self.tensors = loss, tensors

    @classmethod
    def of(cls, case: LossCase) -> LossInputs:
        """Made, always the same ones."""
        loss, generator = LOSSES[case.name], torch.Generator().manual_seed(0)
        return cls(loss, [make(case.shape, TYPES[case.dtype_name], generator) for make in loss.makes])

    def in_float32(self) -> LossInputs:
        """Return the same numbers in float32: for bfloat16, torch rounds intermediate results."""
        return LossInputs(
            self._loss, [tensor.float() if tensor.is_floating_point() else tensor for tensor in self.tensors]
        )

    def value(self, library: ModuleType) -> Tensor:
        """The loss, without a graph."""
        with torch.no_grad():
            return self._of(library, self.tensors[0])

    def gradient(self, library: ModuleType) -> Tensor:
        """Return the gradient by the first tensor; the graph is made at the first call."""
        loss = self._of_ours if library is nkilib.torch else self._of_torch
        return torch.autograd.grad(loss, self._leaf, retain_graph=True)[0]

    @cached_property
    def _leaf(self) -> Tensor:
        return self.tensors[0].detach().requires_grad_()

    @cached_property
    def _of_ours(self) -> Tensor:
        return self._of(nkilib.torch, self._leaf)

    @cached_property
    def _of_torch(self) -> Tensor:
        return self._of(F, self._leaf)

    def _of(self, library: ModuleType, first: Tensor) -> Tensor:
        loss: Tensor = getattr(library, self._loss.name)(first, *self.tensors[1:], **self._loss.options)
        return loss


PASSES: Final[dict[str, Callable[[LossInputs, ModuleType], Tensor]]] = {
    FORWARD: LossInputs.value,
    BACKWARD: LossInputs.gradient,
}


def measure_loss_memory(case: LossCase, name: str) -> MemoryUse:
    """Run the pass ``name`` of ``case`` in a fresh process and return what it needed; a backward counts its forward.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    return measure_in_process("benchmarks._losses", case.name, "x".join(map(str, case.shape)), case.dtype_name, name)


def main(arguments: list[str]) -> None:
    loss, shape, dtype_name, name = arguments
    inputs = LossInputs.of(LossCase(loss, tuple(map(int, shape.split("x"))), dtype_name))
    kept = sum(tensor.nbytes for tensor in inputs.tensors)
    before = resident_bytes()
    result = PASSES[name](inputs, nkilib.torch)
    # The inputs lay in memory before: both what grew and what is held count them.
    growth = max(peak_resident_bytes() - before, result.nbytes) + kept
    print(json.dumps(asdict(MemoryUse(growth=growth, arrays=kept + result.nbytes))))


if __name__ == "__main__":
    main(sys.argv[1:])
