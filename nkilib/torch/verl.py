# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Log-probability and entropy from hidden states for verl, on the kernels; importing it does not import verl.

What the functions equal is written down in ``verl/utils/kernel/linear_cross_entropy.py`` and
``verl/utils/experimental/torch_functional.py``, version 0.9.1. How a worker of verl comes to call :func:`install` is in
docs/trainers.md.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.experimental.loss.linear.shared.launch import FEATURES_MAX, FEATURES_MIN
from nkilib.torch.dispatch.operator import TILE_DTYPES
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores
from nkilib.torch.replacement import Release, Replacement, Undo, checked_devices, replace

__all__ = ["Undo", "fused_linear_for_ppo", "install", "linear_cross_entropy"]

_RELEASE: Final = Release("nkilib.torch.verl.install", "verl", "0.9.1")
_KERNEL: Final = "verl.utils.kernel.linear_cross_entropy"
_FUSED: Final = "verl.utils.experimental.torch_functional"
_REDUCTIONS: Final = ("none", "sum", "mean")
# Widths of hidden states that the kernels take.
_WIDTHS: Final = range(FEATURES_MIN, FEATURES_MAX + 1)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    reduction: str = "none",
    dist_process_group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of every label and entropy, as ``verl.utils.kernel.linear_cross_entropy.linear_cross_entropy``.

    It equals, with z = hidden @ weight.T / temperature of all classes in float32, and of any device::

        logprobs = -torch.nn.functional.cross_entropy(z.flatten(0, -2), labels.flatten(), reduction="none")
        entropy = (z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1)).flatten()

    Args:
        hidden: [..., D], bfloat16, float16 or float32.
        weight: [V, D]; with a group this rank's rows of it, as many on each rank.
        labels: [...] of the shape of ``hidden`` without the last dimension, integer, counted over the classes of all
            ranks. -100 has log-probability 0.
        temperature: from 1e-6 to 1e6, divides the logits. Each new value compiles a kernel.
        reduction: of the log-probabilities: ``"none"``, ``"sum"`` or ``"mean"`` over all positions. Upper case counts.
        dist_process_group: the ranks that share the vocabulary. As with verl's own, the gradient of ``hidden`` is then
            a part of the sum over these ranks, which verl takes where it gathers the sequence-parallel region. Here
            the first rank has the whole and the others zeros, so that no sum rounds.

    Returns:
        Both float32 and differentiable: log-probabilities [N], or without dimensions where they are reduced, and the
        entropies [N], in nats.

    Raises:
        ValueError: unknown ``reduction``.
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: as
            :func:`nkilib.torch.linear_token_scores`.
    """
    lowered = reduction.lower()
    if lowered not in _REDUCTIONS:
        raise ValueError(
            f"nkilib.torch.verl.linear_cross_entropy: reduction must be none, sum or mean, got {reduction!r}; pass one "
            f"of them"
        )
    group = dist_process_group
    if group is not None and dist.get_world_size(group) == 1:
        group = None
    if group is not None:
        hidden = _gradient_on_first_rank(hidden, dist.get_rank(group) == 0)
    rows, targets = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    scores = linear_token_scores(rows, weight, targets, group, temperature=temperature)
    logprobs: Tensor = scores.logprob if lowered == "none" else getattr(scores.logprob, lowered)()
    return logprobs, cast(Tensor, scores.entropy)


class _GradientOnFirstRank(torch.autograd.Function):
    """A tensor as it is; its gradient, the same on all ranks, becomes parts of a sum over them."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, is_first: bool) -> Tensor:
        ctx.is_first = is_first
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return (grads[0] if ctx.is_first else torch.zeros_like(grads[0])), None


def _gradient_on_first_rank(tensor: Tensor, is_first: bool) -> Tensor:
    apply: Callable[..., Tensor] = _GradientOnFirstRank.apply
    return apply(tensor, is_first)


def fused_linear_for_ppo(
    hidden_states: Tensor, vocab_weights: Tensor, input_ids: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of every position, as the ``forward`` of verl's ``FusedLinearForPPO``.

    The entropy is float32, where that of verl has the type of the hidden states.

    Args:
        hidden_states: [..., D], bfloat16, float16 or float32.
        vocab_weights: [V, D].
        input_ids: [...], the tokens to score, already shifted; -100 has log-probability 0.
        temperature: from 1e-6 to 1e6, divides the logits. Each new value compiles a kernel.

    Returns:
        Both float32, of the shape of ``input_ids``, and differentiable.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: as
            :func:`nkilib.torch.linear_token_scores`.
    """
    scores = linear_token_scores(hidden_states, vocab_weights, input_ids, temperature=temperature)
    return scores.logprob, cast(Tensor, scores.entropy)


def install(devices: Sequence[str] = ("neuron",)) -> Undo:
    """Make verl compute log-probabilities and entropies from hidden states on the kernels.

    After it ``verl.utils.kernel.linear_cross_entropy.linear_cross_entropy`` is :func:`linear_cross_entropy` for tensors
    on one of these devices, in every module of verl that has imported it by name too; and ``FusedLinearForPPO`` is
    :func:`fused_linear_for_ppo`, whatever its backend. Tensors on other devices, float64, hidden states with fewer than
    16 or more than 16,384 features and a temperature for each sample go to verl's own code. Models built before and
    after it are served alike; verl takes both only with ``use_fused_kernels``.

    Args:
        devices: types of devices, as in ``tensor.device.type``; ``"cpu"`` runs the simulator.

    Returns:
        What undoes it: call it, or use it in a ``with`` statement.

    Raises:
        ImportError: there is no verl.
        RuntimeError: the functions of the installed verl have other arguments; it says which.
        TypeError: ``devices`` is no iterable of strings, or a string itself.
        ValueError: it is installed already; or no kernel runs on one of the devices.
    """
    kinds = checked_devices("nkilib.torch.verl.install", devices)
    verl: Any = importlib.import_module("verl")
    kernel: Any = importlib.import_module(_KERNEL)
    fused: Any = importlib.import_module(_FUSED).FusedLinearForPPO
    if hasattr(kernel.linear_cross_entropy, "nkilib_devices"):
        raise ValueError("nkilib.torch.verl.install: it is installed already; call what it returned first")
    function = f"{_KERNEL}.linear_cross_entropy"
    _RELEASE.check(
        str(verl.__version__),
        {
            function: (
                kernel.LinearCrossEntropy.forward,
                "(ctx, hidden, weight, labels, temperature=1.0, reduction='none', dist_process_group=None)",
            ),
            f"{_FUSED}.FusedLinearForPPO.forward": (
                fused.forward,
                "(self, hidden_states, vocab_weights, input_ids, temperature=1.0)",
            ),
        },
    )
    stock = kernel.linear_cross_entropy
    return replace(
        "verl",
        (
            Replacement(kernel, "linear_cross_entropy", stock, _scores_of_kernel(stock, kinds)),
            Replacement(fused, "forward", fused.forward, _forward_of_module(fused.forward, kinds)),
        ),
    )


def _scores_of_kernel(theirs: Callable[..., Any], devices: frozenset[str]) -> Callable[..., Any]:
    def either(
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        temperature: float = 1.0,
        reduction: str = "none",
        dist_process_group: dist.ProcessGroup | None = None,
    ) -> Any:
        ours = linear_cross_entropy if _is_taken(hidden, weight, temperature, devices) else theirs
        return ours(hidden, weight, labels, temperature, reduction, dist_process_group)

    either.__name__ = either.__qualname__ = "linear_cross_entropy"
    either.nkilib_devices = devices  # type: ignore[attr-defined]
    return either


def _forward_of_module(theirs: Callable[..., Any], devices: frozenset[str]) -> Callable[..., Any]:
    def forward(
        self: Any, hidden_states: Tensor, vocab_weights: Tensor, input_ids: Tensor, temperature: float = 1.0
    ) -> Any:
        if _is_taken(hidden_states, vocab_weights, temperature, devices):
            return fused_linear_for_ppo(hidden_states, vocab_weights, input_ids, temperature)
        return theirs(self, hidden_states, vocab_weights, input_ids, temperature)

    return forward


def _is_taken(hidden: Tensor, weight: Tensor, temperature: object, devices: frozenset[str]) -> bool:
    return (
        hidden.device.type in devices
        and hidden.dtype in TILE_DTYPES
        and weight.dtype in TILE_DTYPES
        and hidden.shape[-1] in _WIDTHS
        and not isinstance(temperature, Tensor)
    )
