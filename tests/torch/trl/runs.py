# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Three runs of one trainer: TRL's function in float64, TRL's own, and ours; what each gave, and how far it is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
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
