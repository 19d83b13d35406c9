# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Three runs of one trainer: TRL's function in float64, TRL's own, and ours; what each gave, how far it is off, and by
what ours may be off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from nkilib.torch.trl import install
from tests.torch.trl.exact import Replaced
from tests.torch.trl.trainers import KINDS, Case

if TYPE_CHECKING:
    from transformers import TrainerCallback


@dataclass
class Run:
    """The results of one run.

    Attributes:
        losses: the losses from ``compute_loss``, one a step.
        gradients: the gradients of all parameters with one, by name, one dictionary a step.
        results: the results of the calls of the function in the first step, and before it.
        tiles: how many of TRL's tiles were computed.
    """

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    results: list[tuple[Tensor | None, ...]] = field(default_factory=list)
    tiles: int = 0


def _watch(run: Run) -> TrainerCallback:
    """What keeps the gradients of every step."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            results = {name: tensor.grad for name, tensor in model.named_parameters() if tensor.grad is not None}
            assert all(
                parameter.grad is None or parameter.grad.dtype == parameter.dtype for parameter in model.parameters()
            )
            run.gradients.append({name: grad.detach().clone() for name, grad in results.items()})

    return Watch()


@contextmanager
def _counted_tiles(replaced: Replaced, run: Run) -> Iterator[None]:
    """TRL's tiles are counted."""
    with pytest.MonkeyPatch.context() as patch:
        for name in replaced.tiles:
            patch.setattr(replaced.own, name, _counted(getattr(replaced.own, name), run))
        yield


def _counted(tile: Any, run: Run) -> Any:
    def count(*args: Any, **kwargs: Any) -> None:
        run.tiles += 1
        tile(*args, **kwargs)

    return count


@contextmanager
def _watched_results(replaced: Replaced, run: Run) -> Iterator[None]:
    """Results of the function that is in its place are kept, as long as the first step lasts."""
    function = replaced.current

    class Watched:
        @staticmethod
        def apply(*args: Any) -> tuple[Tensor | None, ...]:
            results = function.apply(*args)
            if len(run.gradients) == 0:
                run.results.append(tuple(None if result is None else result.detach().clone() for result in results))
            return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaced.place, replaced.name, Watched)
        yield


@contextmanager
def _exact(replaced: Replaced) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replaced.place, replaced.name, replaced.exact)
        yield


def run(case: Case, directory: Path, function: str) -> Run:
    """Train once with ``function``, ``"exact"``, ``"trl"`` or ``"ours"``."""
    result, replaced = Run(), KINDS[case.kind].replaced
    contexts = {
        "exact": lambda: _exact(replaced),
        "trl": nullcontext,
        "ours": lambda: install(devices=("cpu",)),
    }
    trainer = case.trainer(directory)
    compute_loss = trainer.compute_loss

    def watched(*args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(*args, **kwargs)
        result.losses.append(loss.item())
        return loss

    trainer.compute_loss = watched
    trainer.add_callback(_watch(result))
    with contexts[function](), _watched_results(replaced, result), _counted_tiles(replaced, result):
        trainer.train()
    return result


# What may be off where TRL's own code is exact or nearly so. A value is a float32 of a few nats. A gradient in float32
# is off by what the log-probabilities are off by: logits of up to 16 are rounded to 2**-21 about six times, in the
# product, with the bias, by the temperature, in the log-sum-exp, in the difference to it and in the exponential. In
# bfloat16 the gradient of one logit, rounded the other way, moves what follows.
VALUE = 5e-6
NORM = {torch.float32: 3e-6, torch.bfloat16: 1.2e-3}
ROW = {torch.float32: 2e-5, torch.bfloat16: 4e-3}
TIMES_TRL = 2.0


@dataclass(frozen=True)
class Error:
    """The error of one quantity.

    Attributes:
        name: the name of the quantity.
        size: the error.
        floor: the error allowed in any case.
    """

    name: str
    size: float
    floor: float


def errors(run: Run, exact: Run, names: tuple[str, ...], products: torch.dtype, later: float = 0.0) -> list[Error]:
    """All errors of a run.

    Args:
        run: the run that is compared.
        exact: the run in float64.
        names: the names of the function's results that are numbers.
        products: the type that products are computed in.
        later: the further error allowed in gradients, from the second step on.
    """
    assert len(run.losses) == len(exact.losses) and len(run.results) == len(exact.results)
    assert len(run.gradients) == len(exact.gradients)
    result = [
        Error(f"loss {step}", abs(ours - reference), VALUE)
        for step, (ours, reference) in enumerate(zip(run.losses, exact.losses, strict=True))
    ]
    for call, (ours, reference) in enumerate(zip(run.results, exact.results, strict=True)):
        for name, value, expected in zip(names, ours, reference, strict=False):
            assert (value is None) == (expected is None)
            if value is not None and expected is not None:
                assert value.dtype == torch.float32 and value.shape == expected.shape
                result.append(Error(f"{name} {call}", float((value - expected).abs().max()), VALUE))
    for step, (gradients, expected) in enumerate(zip(run.gradients, exact.gradients, strict=True)):
        assert gradients.keys() == expected.keys()
        for name, reference in expected.items():
            assert gradients[name].dtype == reference.dtype
            norm, row = shares(gradients[name], reference)
            further = later if step else 0.0
            result.append(Error(f"norm of {name} {step}", norm, NORM[products] + further))
            result.append(Error(f"row of {name} {step}", row, ROW[products] + further))
    return result


def shares(gradient: Tensor, exact: Tensor) -> tuple[float, float]:
    """The error's norm as a share of that of the gradient, and the same of the worst row; a vector is one row.

    A row counts at least as the root mean square of all: what positions add to a row may cancel, and the row is then
    off by what these parts are off by, however little is left of them.
    """
    reference = exact.double()
    assert reference.norm() > 0
    error = gradient.double() - reference
    rows, sizes = torch.atleast_2d(error).norm(dim=-1), torch.atleast_2d(reference).norm(dim=-1)
    typical = sizes.square().mean().sqrt()
    return float(error.norm() / reference.norm()), float((rows / sizes.clamp(min=typical)).max())


def too_large(ours: list[Error], theirs: list[Error]) -> Iterator[str]:
    """The errors of ours that are neither small nor at most twice TRL's."""
    for error, other in zip(ours, theirs, strict=True):
        assert error.name == other.name
        if not error.size <= max(TIMES_TRL * other.size, error.floor):
            yield f"{error.name}: {error.size:.2e}, TRL {other.size:.2e}, floor {error.floor:.1e}"
