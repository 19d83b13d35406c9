"""Three runs of one trainer: TRL's function in float64, TRL's own, and ours; what each gave, and how far it is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import trl.kernels.chunked_logprob as tiles
import trl.trainer.utils as place
from torch import Tensor
from torch.nn import functional
from transformers import TrainerCallback

from nkilib.torch.trl import install
from tests.torch.trl.trainers import Case

NAME = "_ChunkedLogProbFunction"
OUTPUTS = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


class _Rounded(torch.autograd.Function):
    """Float64 of a tensor in the type of the products; the gradient is rounded to the type of the tensor alone."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = given.dtype
        return given.to(dtype).double()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype), None


class Exact:
    """TRL's function in float64, of operands rounded to the type that TRL computes in."""

    @staticmethod
    def apply(
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None = None,
        logit_scale: float = 1.0,
        outputs: tuple[str, ...] = OUTPUTS,
    ) -> tuple[Tensor | None, ...]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        with torch.autocast(kind, enabled=False):
            operands = [None if each is None else _Rounded.apply(each, dtype) for each in (hidden, weight, bias)]
            z = functional.linear(*operands) * logit_scale
            z = (z if softcap is None else softcap * torch.tanh(z / softcap)) / temperature
            every = z.log_softmax(-1)
            p = every.exp()
            entropy = torch.special.entr(p).sum(-1)
            given = {
                "entropy": entropy.float(),
                "log_sum_sq_probs": p.square().sum(-1).log().float().detach(),
                "mean_logits": z.mean(-1).float().detach(),
                "is_top1": z.argmax(-1) == targets,
            }
            logprob = every.gather(-1, targets[:, None])[:, 0].float()
        return logprob, *(given[name] if name in outputs else None for name in OUTPUTS)


@dataclass
class Run:
    """What one run gave.

    Attributes:
        losses: from ``compute_loss``, one a step.
        gradients: of all parameters with one, by name, one dictionary a step.
        results: of the calls of the function in the first step, and before it.
        tiles: how many of TRL's tiles were computed.
    """

    losses: list[float] = field(default_factory=list)
    gradients: list[dict[str, Tensor]] = field(default_factory=list)
    results: list[tuple[Tensor | None, ...]] = field(default_factory=list)
    tiles: int = 0


class _Watch(TrainerCallback):
    """Keeps the gradients of every step."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        assert all(each.grad is None or each.grad.dtype == each.dtype for each in model.parameters())
        self.run.gradients.append({name: grad.detach().clone() for name, grad in found.items()})


@contextmanager
def _counted_tiles(run: Run) -> Iterator[None]:
    """TRL's tiles are counted."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_forward_tile", "_backward_tile"):
            patch.setattr(tiles, name, _counted(getattr(tiles, name), run))
        yield


def _counted(tile: Any, run: Run) -> Any:
    def count(*args: Any, **kwargs: Any) -> None:
        run.tiles += 1
        tile(*args, **kwargs)

    return count


@contextmanager
def _watched_results(run: Run) -> Iterator[None]:
    """Results of the function that is in its place are kept, as long as the first step lasts."""
    function = getattr(place, NAME)

    class Watched:
        @staticmethod
        def apply(*args: Any) -> tuple[Tensor | None, ...]:
            results = function.apply(*args)
            if len(run.gradients) == 0:
                run.results.append(tuple(None if each is None else each.detach().clone() for each in results))
            return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, NAME, Watched)
        yield


@contextmanager
def _exact() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, NAME, Exact)
        yield


def run(case: Case, directory: Path, function: str) -> Run:
    """Train once with ``function``, ``"exact"``, ``"trl"`` or ``"ours"``."""
    found = Run()
    within = {"exact": _exact, "trl": nullcontext, "ours": lambda: install(devices=("cpu",))}[function]
    trainer = case.trainer(directory)
    compute_loss = trainer.compute_loss

    def watched(*args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(*args, **kwargs)
        found.losses.append(loss.item())
        return loss

    trainer.compute_loss = watched
    trainer.add_callback(_Watch(found))
    with within(), _watched_results(found), _counted_tiles(found):
        trainer.train()
    return found
