# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cases that are timed without replay, replayed and in torch: launches of kernels, and torch's eager functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

import nkilib.torch
from benchmarks._against_torch import as_tensor
from benchmarks._captured import Captured, captured_launches
from benchmarks._inputs import DTYPES
from benchmarks._linear import LinearCase, LinearInputs
from benchmarks._losses import BACKWARD, FORWARD, LOSSES, LossCase, LossInputs
from benchmarks._softmax import PASSES as SOFTMAX_PASSES
from benchmarks._softmax import SoftmaxCase, SoftmaxInputs
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward, linear_cross_entropy_forward
from nkilib.nki import nl

CORES: Final = 2
# Columns of a chunk: few pieces, since each costs the interpreter's time.
_CHUNKS: Final = {"bf16": 32128, "fp32": 16064}
_NL_TYPES: Final = {"bf16": nl.bfloat16, "fp32": nl.float32}
# Any loss at 128 x 1000: so many times torch's time, or so many seconds, whichever is more.
SMALL_RATIO, SMALL_SECONDS = 5.0, 1.5e-3
_ROWS, _CLASSES = 128, 1000


class Sides(NamedTuple):
    """The two sides of a comparison, on the same data.

    Attributes:
        launches: our launches.
        torch: torch's function for the same work.
    """

    launches: list[Captured]
    torch: Callable[[], object]


@dataclass(frozen=True)
class ReplayCase:
    """A line of the table.

    Attributes:
        name: the launches and their type.
        make: its launches, and torch's function.
        goal: replayed over torch, at most; None where there is none.
        least: seconds that are good enough whatever torch takes.
    """

    name: str
    make: Callable[[], Sides]
    goal: float | None = None
    least: float = 0.0


def _cross_entropy(rows: int, classes: int, dtype: str, direction: str) -> Sides:
    generator = torch.Generator().manual_seed(0)
    logits = np.random.default_rng(0).standard_normal((rows, classes), np.float32).astype(DTYPES[dtype])
    target = torch.randint(classes, (rows,), generator=generator)
    targets, tensor = target.numpy().astype(np.int32), as_tensor(logits)
    tiling = {
        "positions_per_batch": 128,
        "chunk_size": min(classes, _CHUNKS[dtype]),
        "dtype": _NL_TYPES[dtype],
    }
    forward = Captured(cross_entropy_forward[CORES], (logits, targets), {**tiling, "lse_dtype": nl.float32})
    if direction == FORWARD:
        return Sides([forward], partial(F.cross_entropy, tensor, target, reduction="none"))
    lse = forward.kernel(*forward.args, **forward.kwargs)[1]
    leaf = tensor.requires_grad_()
    loss = F.cross_entropy(leaf, target)
    options = {**tiling, "reduction": "mean", "inplace": False}
    backward = Captured(cross_entropy_backward[CORES], (logits, targets, lse), options)
    return Sides([backward], lambda: torch.autograd.grad(loss, leaf, retain_graph=True))


def _softmax(shape: tuple[int, ...], axis: int, dtype: str, direction: str) -> Sides:
    inputs = SoftmaxInputs(SoftmaxCase(shape, axis, dtype))
    if direction == BACKWARD:  # of a softmax, where the measured losses have log-probabilities
        inputs.torch_y = torch.softmax(inputs.torch_x, axis)
        inputs.y = np.asarray(inputs.torch_y.float().numpy(), DTYPES[dtype])
    run = SOFTMAX_PASSES["softmax" if direction == FORWARD else "softmax, backward"]
    return Sides(captured_launches(partial(run.ours, inputs)), partial(run.torch, inputs))


def _loss(name: str, shape: tuple[int, ...], dtype: str, direction: str) -> Sides:
    inputs = LossInputs.of(LossCase(name, shape, dtype))
    run = LossInputs.value if direction == FORWARD else LossInputs.gradient
    run(inputs, F)
    run(inputs, nkilib.torch)  # its graph is made here
    return Sides(captured_launches(partial(run, inputs, nkilib.torch)), partial(run, inputs, F))


def _linear(positions: int, features: int, classes: int) -> Sides:
    inputs = LinearInputs(LinearCase(positions, features, classes))
    launch = Captured(linear_cross_entropy_forward[CORES], (inputs.input, inputs.weight, inputs.targets), {})
    hidden, weight = (as_tensor(item).float() for item in (inputs.input, inputs.weight))
    target = torch.from_numpy(inputs.targets.astype(np.int64))
    return Sides([launch], lambda: F.cross_entropy(F.linear(hidden, weight), target, reduction="none"))


def _named(
    name: str, make: Callable[..., Sides], goals: dict[tuple[str, str], float], *sizes: Any
) -> Iterator[ReplayCase]:
    """A line for each type and direction that has a goal."""
    for (dtype, direction), goal in goals.items():
        yield ReplayCase(f"{name}, {dtype}, {direction}", partial(make, *sizes, dtype, direction), goal)


def _all(bf16: float, fp32: float | None = None) -> dict[tuple[str, str], float]:
    """Return the same goal for forward and backward."""
    types = {"bf16": bf16} if fp32 is None else {"bf16": bf16, "fp32": fp32}
    return {(dtype, way): goal for dtype, goal in types.items() for way in (FORWARD, BACKWARD)}


def _each(fp32: tuple[float, float], bf16: tuple[float, float]) -> dict[tuple[str, str], float]:
    """Goals of forward and backward."""
    goals = {"fp32": fp32, "bf16": bf16}
    return {(dtype, way): of[place] for dtype, of in goals.items() for place, way in enumerate((FORWARD, BACKWARD))}


_MSE: Final = ((0.6, 0.9), (0.6, 2.0))
_TWICE_MSE: Final = _each((1.2, 1.8), (1.2, 4.0))
_MATRICES: Final[dict[str, dict[tuple[str, str], float]]] = {
    "mse_loss": _each(*_MSE),
    "smooth_l1_loss": _each((1.6, 1.0), (3.5, 6.0)),
    "l1_loss": _TWICE_MSE,
    "huber_loss": _TWICE_MSE,
    "margin_ranking_loss": _TWICE_MSE,
    "binary_cross_entropy_with_logits": {("fp32", BACKWARD): 2.6, ("bf16", BACKWARD): 3.2},
}


def cases(quick: bool = False) -> Iterator[ReplayCase]:
    """All lines; the quick ones are small, and have no goals."""
    if quick:
        yield ReplayCase("cross-entropy 4 x 40, fp32, forward", partial(_cross_entropy, 4, 40, "fp32", FORWARD))
        yield ReplayCase("mse_loss [40, 70], bf16, backward", partial(_loss, "mse_loss", (40, 70), "bf16", BACKWARD))
        return
    yield from _named("cross-entropy 128 x 1000", _cross_entropy, _all(3.2, 3.2), 128, 1000)
    yield from _named("cross-entropy 1024 x 32128", _cross_entropy, _all(0.9, 0.6), 1024, 32128)
    yield from _named("cross-entropy 1024 x 129280", _cross_entropy, _all(0.9), 1024, 129280)
    rows, columns = (1024, 32128), (8, 1024, 2048)
    yield from _named("softmax [1024, 32128], axis -1", _softmax, _each((2.4, 0.8), (3.0, 1.9)), rows, -1)
    yield from _named("softmax [8, 1024, 2048], axis 1", _softmax, _all(3.0, 3.0), columns, 1)
    for name, goals in _MATRICES.items():
        yield from _named(f"{name} [4096, 4096]", _loss, goals, name, (4096, 4096))
    yield from _named(
        "ctc_loss [512, 64, 512]",
        _loss,
        {("fp32", way): 2.5 for way in (FORWARD, BACKWARD)},
        "ctc_loss",
        (512, 64, 512),
    )
    yield ReplayCase(
        "linear cross-entropy (1024, 1024, 16000), bf16, forward", partial(_linear, 1024, 1024, 16000), 1.2
    )
    yield ReplayCase("linear cross-entropy (128, 256, 1000), bf16, forward", partial(_linear, 128, 256, 1000), 2.5)
    yield from _small_losses()


def _small_losses() -> Iterator[ReplayCase]:
    """Every loss at 128 x 1000; CTC and a short inner axis, for which there is no goal, at small sizes."""
    for name, loss in LOSSES.items():
        is_exempt = name == "ctc_loss"
        shape = (64, 8, 32) if is_exempt else (_ROWS, _CLASSES)
        for dtype in ("fp32", "bf16") if loss.in_bfloat16 else ("fp32",):
            for direction in (FORWARD, BACKWARD):
                make = partial(_loss, name, shape, dtype, direction)
                goal, least = (None, 0.0) if is_exempt else (SMALL_RATIO, SMALL_SECONDS)
                yield ReplayCase(f"{name} {list(shape)}, {dtype}, {direction}", make, goal, least)
    for direction in (FORWARD, BACKWARD):
        make = partial(_softmax, (8, 64, 128), 1, "fp32", direction)
        yield ReplayCase(f"softmax [8, 64, 128], axis 1, fp32, {direction}", make)
