# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses beside PyTorch's: a table that the tests of all losses go through. A new loss adds a row to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nkilib.torch as ours
from tests.torch.opinfo import (
    Budget,
    Checked,
    Difference,
    Sample,
    module_samples,
    op_samples,
    with_inputs_of,
)
from tests.torch.reduced import REDUCED, SUMS, is_reduced_half

Makes = Callable[[torch.Generator, tuple[int, ...]], Tensor]
Refused = Mapping[str, tuple[Callable[[Any], Any], str]]
REDUCTIONS: Final = ("none", "sum", "mean")

# Squares, and quotients by at least 1/8: those of samples are up to 16 times the largest number and more.
SUMS_OF_SQUARES: Final = replace(SUMS, of_float32=1024.0)

# Of samples from -9 to 9: their exponentials are up to 900 times as large, and derivatives of quotients are steep too.
SUMS_OF_EXPONENTIALS: Final = replace(SUMS, of_float32=2.0**13)
OF_EXPONENTIALS: Final = Budget(of_type=900.0, of_float32=2.0**13)
STEEP: Final = Budget(of_type=64.0, of_float32=2.0**11)


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """PyTorch's, where the derivative of Stirling's estimate is 0 below t = 1, as that of 0 is, and not 0 times NaN."""
    item = F.poisson_nll_loss(input, target, log_input=log_input, eps=eps, reduction="none")
    if full:
        above = target.where(target > 1.0, 2.0)
        estimate = above * above.log() - above + 0.5 * (2.0 * torch.pi * above).log()
        item = item + estimate.where(target > 1.0, 0.0)
    return {"none": item, "sum": item.sum(), "mean": item.mean()}[reduction]


def _takes_logarithm_of_no_count(sample: Sample) -> bool:
    """Tell whether the gradient of a target that is not positive is wanted."""
    target, inputs = sample.args[1], {**sample.constructor[1], **sample.kwargs}
    return bool(inputs.get("full", False)) and target.requires_grad and bool((target <= 0.0).any())


STIRLING: Final = Difference(
    "PyTorch's gradient by a target that is not positive is NaN, of an estimate that it does not take there",
    _takes_logarithm_of_no_count,
    like=poisson_nll_loss,
)


def numbers(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return normally distributed numbers."""
    return torch.randn(shape, generator=generator)


def positive(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return numbers from 1/8 on."""
    return torch.randn(shape, generator=generator).abs() + 0.125


def signs(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """1 and -1."""
    return torch.randn(shape, generator=generator).sign()


def unit_interval(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return numbers in (0, 1)."""
    return torch.randn(shape, generator=generator).sigmoid()


def log_probabilities(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return log-probabilities of the classes along the last dimension."""
    return torch.randn(shape, generator=generator).log_softmax(-1)


def probabilities(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return probabilities of the classes along the last dimension."""
    return log_probabilities(generator, shape).exp()


def signs_of_rows(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """1 and -1 for each row."""
    return torch.randn(shape[:-1], generator=generator).sign()


def labels(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return numbers in (0, 1), which may be labels."""
    return torch.rand(shape, generator=generator)


def class_weights(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return positive weights of classes."""
    return torch.rand(shape[-1:], generator=generator) + 0.125


def classes(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """A class for each row."""
    return torch.randint(shape[-1], shape[:-1], generator=generator)


def lists_of_classes(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Up to six classes for each row, and -1 behind them."""
    target = torch.randint(shape[-1], shape, generator=generator)
    rows = target.view(-1, shape[-1])
    for row in range(len(rows)):
        rows[row, row % min(7, shape[-1])] = -1
    return target


def labels_of_sequences(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Padded targets of log-probabilities [T, N, C]."""
    return torch.randint(1, shape[2], (shape[1], 2), generator=generator)


def steps_of_sequences(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return as many steps for each sequence as there are."""
    return torch.full(shape[1:2], shape[0])


def lengths_of_labels(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """2, 1 and 0 in turn."""
    return 2 - torch.arange(shape[1]) % 3


class Steps(NamedTuple):
    """Settings of ``gradcheck`` in float32: the difference of two losses keeps 2^-15 of them, curvature costs 2^-10."""

    eps: float = 2.0**-8
    atol: float = 2e-3
    rtol: float = 1e-2


_STEPS: Final = Steps()


@dataclass(frozen=True)
class Loss:
    """A function of ours and PyTorch's.

    Attributes:
        name: the name of both functions.
        module: the name of both modules.
        tensors: a function for each of the tensors that every call has, which makes it, in the order of the arguments.
        differentiated: how many of them, from the first one on, PyTorch gives a gradient of.
        forms: keywords of calls, each another formula; tensors of them are made from generator and shape.
        module_forms: the keywords of the module that are those of ``forms``; None: the same.
        shape: the shape of small inputs.
        most_dims: the largest number of dimensions of the first tensor.
        values, gradients: the error allowed against PyTorch in float64, beside the rounding.
        gradcheck: None: of inputs that the loss's own test chooses.
        mixed: PyTorch's type of reduced losses of a bfloat16 and a float32 tensor.
        differs: where PyTorch's own result is not the right one.
        has_module_info: whether ``ModuleInfo`` lists the module.
        lacks_half: PyTorch has it on a CPU in float32 and float64 alone, for int64 indices, with weights of that type.
    """

    name: str
    module: str
    tensors: Sequence[Makes] = (numbers, numbers)
    differentiated: int = 2
    forms: Sequence[Mapping[str, Any]] = ({},)
    module_forms: Sequence[Mapping[str, Any]] | None = None
    shape: tuple[int, ...] = (6, 5)
    most_dims: int = 3
    values: Budget = SUMS
    gradients: Budget = field(default_factory=lambda: Budget(of_type=4.0, of_float32=16.0))
    gradcheck: Steps | None = _STEPS
    mixed: torch.dtype = torch.float32
    differs: Difference | None = None
    has_module_info: bool = True
    lacks_half: bool = False

    @property
    def ours(self) -> Callable[..., Tensor]:
        """The function of :mod:`nkilib.torch`."""
        return getattr(ours, self.name)  # type: ignore[no-any-return]

    @property
    def theirs(self) -> Callable[..., Tensor]:
        """The function of ``torch.nn.functional``, in every type."""
        function: Callable[..., Tensor] = getattr(F, self.name)
        return in_every_type(function) if self.lacks_half else function

    @property
    def our_module(self) -> type[nn.Module]:
        """The module of :mod:`nkilib.torch`."""
        return getattr(ours, self.module)  # type: ignore[no-any-return]

    @property
    def their_module(self) -> type[nn.Module]:
        """The module of ``torch.nn``."""
        return getattr(nn, self.module)  # type: ignore[no-any-return]

    def inputs(self, *shape: int) -> list[Tensor]:
        """The tensors of a call, which require grad where there is a gradient."""
        generator = torch.Generator().manual_seed(sum(shape))
        results = [make(generator, shape) for make in self.tensors]
        return [result.requires_grad_(at < self.differentiated) for at, result in enumerate(results)]

    def keywords(self, form: Mapping[str, Any], *shape: int) -> dict[str, Any]:
        """Return the keywords of a form, with its tensors."""
        generator = torch.Generator().manual_seed(7)
        return {name: value(generator, shape) if callable(value) else value for name, value in form.items()}

    def samples(self, dtype: torch.dtype) -> tuple[Sample, ...]:
        """PyTorch's, of the function."""
        name = f"nn.functional.{self.name}"
        return with_inputs_of(op_samples(name, torch.float32), dtype) if self.lacks_half else op_samples(name, dtype)

    def module_samples(self, dtype: torch.dtype) -> tuple[Sample, ...]:
        """PyTorch's, of the module."""
        if not self.has_module_info:
            return ()
        if self.lacks_half:
            return with_inputs_of(module_samples(self.module, torch.float32), dtype)
        return module_samples(self.module, dtype)

    def checked(self, dtype: torch.dtype = torch.float32, is_module: bool = False) -> Checked:
        """Pair ours with PyTorch's, for samples of a type."""
        pair = (self.our_module, _module_in_every_type(self)) if is_module else (self.ours, self.theirs)
        differences = [] if self.lacks_half else _differences(self.differs, dtype)
        return Checked(*pair, self.values, self.gradients, differences=differences)

    def check_refused(self, case: tuple[Callable[[Any], Any], str]) -> None:
        """A call that PyTorch refuses is refused by an error of that type, whose message names the loss."""
        call, message = case
        with pytest.raises(Exception, match=r".") as theirs:
            call(getattr(F, self.name))
        with pytest.raises(theirs.type, match=message) as refused:
            call(self.ours)
        assert str(refused.value).startswith(f"{self.name}: ") or "hape" in message


def _differences(other: Difference | None, dtype: torch.dtype) -> list[Difference]:
    """The two that there may be, of which a sample may have both."""
    if dtype == torch.float32:
        return [] if other is None else [other]
    if other is None:
        return [REDUCED]
    alone = replace(other, where=lambda sample: other.where(sample) and not is_reduced_half(sample))
    both = replace(other, where=lambda sample: other.where(sample) and is_reduced_half(sample))
    typed = replace(REDUCED, where=lambda sample: is_reduced_half(sample) and not other.where(sample))
    return [alone, replace(both, result_dtype=torch.float32), typed]


def in_every_type(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """PyTorch's, with our types of results."""

    def theirs(input: Tensor, target: Tensor, *args: Any, **keywords: Any) -> Tensor:
        computed = input.double() if input.dtype == torch.float64 else input.float()
        if keywords.get("weight") is not None:
            keywords["weight"] = keywords["weight"].to(computed.dtype)
        loss = function(computed, target.long(), *args, **keywords)
        return loss.to(input.dtype) if keywords.get("reduction") == "none" else loss

    return theirs


def _module_in_every_type(loss: Loss) -> type[nn.Module]:
    """PyTorch's module with such a function."""
    if not loss.lacks_half:
        return loss.their_module
    names = ("p", "margin", "weight", "blank", "zero_infinity", "reduction")

    class Module(loss.their_module):  # type: ignore[name-defined, misc]
        def forward(self, *tensors: Any) -> Tensor:
            options = {name: getattr(self, name) for name in names if hasattr(self, name)}
            return loss.theirs(*tensors, **options)

    return Module


ELEMENTWISE: Final = (
    Loss("mse_loss", "MSELoss", forms=({}, {"weight": positive}), module_forms=({},), values=SUMS_OF_SQUARES),
    Loss("l1_loss", "L1Loss", forms=({}, {"weight": positive}), module_forms=({},)),
    Loss("smooth_l1_loss", "SmoothL1Loss", forms=({}, {"beta": 0.3})),
    Loss(
        "huber_loss",
        "HuberLoss",
        forms=({"delta": 0.6}, {"weight": positive}),
        module_forms=({}, {"delta": 0.6}),
        values=SUMS_OF_SQUARES,
        mixed=torch.bfloat16,
    ),
    Loss(
        "hinge_embedding_loss",
        "HingeEmbeddingLoss",
        tensors=(numbers, signs),
        differentiated=1,
        mixed=torch.bfloat16,
        forms=({}, {"margin": 0.4}),
    ),
    Loss(
        "margin_ranking_loss",
        "MarginRankingLoss",
        tensors=(numbers, numbers, signs),
        differentiated=3,
        forms=({}, {"margin": 0.4}),
    ),
    Loss(
        "binary_cross_entropy",
        "BCELoss",
        tensors=(unit_interval, unit_interval),
        forms=({}, {"weight": positive}),
        gradients=STEEP,
    ),
    Loss(
        "binary_cross_entropy_with_logits",
        "BCEWithLogitsLoss",
        forms=({}, {"weight": positive}, {"pos_weight": positive}),
        module_forms=({}, {"weight": positive, "pos_weight": positive}),
    ),
    Loss(
        "poisson_nll_loss",
        "PoissonNLLLoss",
        tensors=(positive, positive),
        forms=({}, {"full": True}, {"log_input": False, "full": True}),
        module_forms=({}, {"log_input": False, "full": True, "eps": 1e-4}),
        values=SUMS_OF_EXPONENTIALS,
        gradients=OF_EXPONENTIALS,
        differs=STIRLING,
    ),
    Loss(
        "gaussian_nll_loss",
        "GaussianNLLLoss",
        tensors=(numbers, numbers, positive),
        differentiated=3,
        forms=({}, {"full": True, "eps": 0.25}),
        values=SUMS_OF_SQUARES,
        gradients=STEEP,
    ),
    Loss(
        "kl_div",
        "KLDivLoss",
        tensors=(log_probabilities, probabilities),
        forms=({}, {"log_target": True}),
        gradcheck=Steps(atol=1e-3),
    ),
)
KL_DIV: Final = ELEMENTWISE[-1]

_STEEP_ROWS: Final = Budget(of_type=4.0, of_float32=64.0)
ROWWISE: Final = (
    Loss(
        "triplet_margin_loss",
        "TripletMarginLoss",
        (numbers, numbers, numbers),
        3,
        ({}, {"swap": True, "margin": 2.5}, {"p": 1, "eps": 0.125}, {"p": float("inf"), "swap": True}, {"p": 3.5}),
        has_module_info=False,
        values=Budget(of_float32=2048.0),  # of p = 1: a sum of 1100 numbers
        gradients=_STEEP_ROWS,
        gradcheck=Steps(atol=4e-3),
    ),
    Loss(
        "cosine_embedding_loss",
        "CosineEmbeddingLoss",
        (numbers, numbers, signs_of_rows),
        2,
        ({}, {"margin": -0.25}),
        most_dims=2,
        gradients=_STEEP_ROWS,
        gradcheck=Steps(atol=4e-3),
    ),
    Loss(
        "multilabel_soft_margin_loss",
        "MultiLabelSoftMarginLoss",
        (numbers, labels),
        2,
        ({}, {"weight": class_weights}),
        gradients=_STEEP_ROWS,
        gradcheck=Steps(atol=4e-3),
    ),
)
TRIPLET_MARGIN, COSINE_EMBEDDING, MULTILABEL_SOFT_MARGIN = ROWWISE

MULTI_MARGIN: Final = Loss(
    "multi_margin_loss",
    "MultiMarginLoss",
    (numbers, classes),
    1,
    ({}, {"weight": class_weights}),
    shape=(5, 37),
    gradcheck=None,
    lacks_half=True,
)
MULTILABEL_MARGIN: Final = Loss(
    "multilabel_margin_loss",
    "MultiLabelMarginLoss",
    (numbers, lists_of_classes),
    1,
    shape=(5, 37),
    gradcheck=None,
    lacks_half=True,
)
NLL: Final = Loss(
    "nll_loss",
    "NLLLoss",
    (log_probabilities, classes),
    1,
    ({}, {"weight": class_weights}),
    shape=(5, 37),
    gradcheck=Steps(eps=2.0**-6, atol=1e-4, rtol=1e-3),  # it is linear
)
# Samples have 50 steps; each rounds logarithms of up to some 200, while the largest input is below 10. An occupancy is
# e to three of them.
CTC: Final = Loss(
    "ctc_loss",
    "CTCLoss",
    (log_probabilities, labels_of_sequences, steps_of_sequences, lengths_of_labels),
    1,
    shape=(6, 3, 5),
    values=Budget(of_float32=2000.0),
    gradients=Budget(of_type=2.0, of_float32=6000.0),
    gradcheck=None,
    lacks_half=True,
)
INDEXED: Final = (MULTI_MARGIN, MULTILABEL_MARGIN, NLL, CTC)
LOSSES: Final = (*ELEMENTWISE, *ROWWISE, *INDEXED)


def forms_of(losses: Sequence[Loss]) -> list[Any]:
    """Parameters of tests: each loss with each of its forms."""
    return [pytest.param(loss, form, id=" ".join((loss.name, *form))) for loss in losses for form in loss.forms]
