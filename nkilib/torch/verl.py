# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Log-probability and entropy from hidden states for verl, on the kernels. Importing this module does not import verl.

:func:`linear_cross_entropy` and :func:`fused_linear_for_ppo` have the arguments of verl's functions, and
:func:`install` replaces verl's functions by them. Verl 0.9.1 defines its functions in
``verl/utils/kernel/linear_cross_entropy.py`` and ``verl/utils/experimental/torch_functional.py``.
docs/reference/torch.md#which-function-for-which-trainer describes how a worker of verl calls :func:`install`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor

from nkilib.experimental.loss.cross_entropy.launch import TEMPERATURE_MIN
from nkilib.experimental.loss.linear.launch import FEATURES_MAX, FEATURES_MIN
from nkilib.torch.dispatch.operator import TILE_DTYPES
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores
from nkilib.torch.replacement import Release, Replacement, Undo, checked_devices, replace, warn_without_effect

__all__ = ["Undo", "fused_linear_for_ppo", "install", "linear_cross_entropy"]

_RELEASE: Final = Release("nkilib.torch.verl.install", "verl", "0.9.1")
_KERNEL: Final = "verl.utils.kernel.linear_cross_entropy"
_FUSED: Final = "verl.utils.experimental.torch_functional"
_REDUCTIONS: Final = ("none", "sum", "mean")
# Widths of hidden states that the kernels take.
_WIDTHS: Final = range(FEATURES_MIN, FEATURES_MAX + 1)


def _shape_of_temperatures(shape: Sequence[int], positions: Sequence[int]) -> tuple[int, ...] | None:
    """Return the shape in which temperatures broadcast to the positions; None for a shape that verl does not pass.

    Args:
        shape: the shape of the temperatures. verl passes: one element; the shape of the positions; packed positions,
            [N] or [1, N]; and [batch], one for each sample, for positions [batch, ...]. [N] and [batch] may have a
            further dimension of one element at the end, as temperatures that divide logits do.
        positions: the shape of the positions.
    """
    given, of_positions, count = tuple(shape), tuple(positions), math.prod(positions)
    if math.prod(given) == 1:
        return ()
    if given in (of_positions, (*of_positions, 1), (count,), (count, 1), (1, count)):
        return of_positions
    is_of_samples = given[:1] == of_positions[:1] and math.prod(given[1:]) == 1
    if not is_of_samples or len(given) > len(of_positions) + 1:
        return None
    return (given[0], *(1,) * (len(of_positions) - 1))


def _is_temperature(temperature: object, hidden: Tensor) -> bool:
    if not isinstance(temperature, Tensor):
        return True
    if temperature.is_nested or temperature.is_complex() or temperature.requires_grad:
        return False
    is_here = temperature.device == hidden.device or temperature.dim() == 0
    return is_here and _shape_of_temperatures(temperature.shape, hidden.shape[:-1]) is not None


def _temperature_of_positions(caller: str, temperature: float | Tensor, hidden: Tensor) -> float | Tensor:
    """Return a temperature as nkilib takes it: the number, or a float32 tensor of the shape of the positions or of one
    element.

    Values of tensors below the least temperature of the kernels are raised to it: verl pads with temperatures of 0, and
    its engines raise them to 1e-8.

    Raises:
        RuntimeError: the kernels do not take the tensor.
    """
    if not isinstance(temperature, Tensor):
        return temperature
    positions = hidden.shape[:-1]
    shape = _shape_of_temperatures(temperature.shape, positions)
    if shape is None or not _is_temperature(temperature, hidden):
        raise RuntimeError(
            f"{caller}: temperature must be a number or a real tensor on {hidden.device} that does not require grad, "
            f"of one element, of one for each position {tuple(positions)} or of one for each sample, got shape "
            f"{tuple(temperature.shape)}, {temperature.dtype}, on {temperature.device}, requires_grad="
            f"{temperature.requires_grad}; pass it detached, in one of these shapes"
        )
    # An element without dimensions may be on the CPU, as in PyTorch's own functions.
    numbers = temperature.to(hidden.device, torch.float32).clamp(min=TEMPERATURE_MIN).reshape(shape)
    return numbers.expand(positions) if shape else numbers


class _GradientOnFirstRank(torch.autograd.Function):
    """The identity as an autograd function whose upstream gradient is the same on all ranks.

    The backward returns the upstream gradient on the first rank and zeros on the others, so that adding the gradients
    of the ranks gives the upstream gradient.
    """

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


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float | Tensor = 1.0,
    reduction: str = "none",
    dist_process_group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the log-probability of every label and the entropy, like
    ``verl.utils.kernel.linear_cross_entropy.linear_cross_entropy``.

    The results equal, with z = hidden @ weight.T / temperature over all classes in float32, on any device::

        logprobs = -torch.nn.functional.cross_entropy(z.flatten(0, -2), labels.flatten(), reduction="none")
        entropy = (z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1)).flatten()

    Args:
        hidden: [..., D], bfloat16, float16 or float32.
        weight: the weight [V, D]; with a group, this rank's rows of it, equally many on each rank.
        labels: integers [...], of the shape of ``hidden`` without the last dimension, counted over the classes of all
            ranks. -100 has log-probability 0.
        temperature: divides the logits; from 1e-6 to 1e6. Each new number compiles a new kernel; new values of a tensor
            do not. A tensor, which has no gradient, has one element; or one for each of the N positions, in the shape
            of ``labels``, [N] or [1, N]; or for labels [batch, ...] one for each sample, [batch]. Further dimensions of
            size 1 may follow. Values of tensors below 1e-6, such as 0 at padding, are taken as 1e-6.
        reduction: the reduction of the log-probabilities: ``"none"``, ``"sum"`` or ``"mean"`` over all positions, in
            upper or lower case.
        dist_process_group: the ranks that share the vocabulary. As in verl, the gradients of ``hidden`` on these ranks
            then still have to be added; verl does so where it gathers the sequence-parallel region. Here the first rank
            has the whole gradient and the others have zeros, so that the addition does not round.

    Returns:
        Two float32 differentiable tensors: log-probabilities [N], or a scalar if they are reduced, and the entropies
        [N], in nats.

    Raises:
        ValueError: unknown ``reduction``.
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: see
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
    temperature = _temperature_of_positions("nkilib.torch.verl.linear_cross_entropy", temperature, hidden)
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(-1)
    rows, targets = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    scores = linear_token_scores(rows, weight, targets, group, temperature=temperature)
    logprobs: Tensor = scores.logprob if lowered == "none" else getattr(scores.logprob, lowered)()
    return logprobs, cast(Tensor, scores.entropy)


def fused_linear_for_ppo(
    hidden_states: Tensor, vocab_weights: Tensor, input_ids: Tensor, temperature: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Compute log-probability and entropy of every position, like the ``forward`` of verl's ``FusedLinearForPPO``.

    The entropy is float32, whereas verl's has the dtype of the hidden states.

    Args:
        hidden_states: [..., D], bfloat16, float16 or float32.
        vocab_weights: the weight [V, D].
        input_ids: [...], the tokens to score, already shifted; -100 has log-probability 0.
        temperature: divides the logits, see :func:`linear_cross_entropy`; a tensor of one for each position has the
            shape of ``input_ids``, [N] or [1, N].

    Returns:
        Two float32 differentiable tensors of the shape of ``input_ids``: log-probabilities and entropies, in nats.

    Raises:
        TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: see
            :func:`nkilib.torch.linear_token_scores`.
    """
    temperature = _temperature_of_positions("nkilib.torch.verl.fused_linear_for_ppo", temperature, hidden_states)
    scores = linear_token_scores(hidden_states, vocab_weights, input_ids, temperature=temperature)
    return scores.logprob, cast(Tensor, scores.entropy)


def _is_taken(hidden: Tensor, weight: Tensor, temperature: object, devices: frozenset[str]) -> bool:
    return (
        hidden.device.type in devices
        and hidden.dtype in TILE_DTYPES
        and weight.dtype in TILE_DTYPES
        and hidden.shape[-1] in _WIDTHS
        and _is_temperature(temperature, hidden)
    )


def _scores_of_kernel(theirs: Callable[..., Any], devices: frozenset[str]) -> Callable[..., Any]:
    def either(
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        temperature: float | Tensor = 1.0,
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
        self: Any, hidden_states: Tensor, vocab_weights: Tensor, input_ids: Tensor, temperature: float | Tensor = 1.0
    ) -> Any:
        if _is_taken(hidden_states, vocab_weights, temperature, devices):
            return fused_linear_for_ppo(hidden_states, vocab_weights, input_ids, temperature)
        return theirs(self, hidden_states, vocab_weights, input_ids, temperature)

    return forward


def install(devices: Sequence[str] = ("neuron",)) -> Undo:
    """Make verl compute log-probabilities and entropies from hidden states on the kernels.

    After the installation ``verl.utils.kernel.linear_cross_entropy.linear_cross_entropy`` is
    :func:`linear_cross_entropy` for tensors on one of these devices, in every module of verl that has imported it by
    name too; and ``FusedLinearForPPO`` is :func:`fused_linear_for_ppo`, for any backend. Tensors on other devices,
    float64, hidden states with fewer than 16 or more than 16,384 features, and temperatures that
    :func:`linear_cross_entropy` does not take go to verl's own code. Models built before and after the installation are
    served alike; verl calls both functions only with ``use_fused_kernels``.

    Args:
        devices: the device types, as in ``tensor.device.type``; ``"cpu"`` runs the simulator. If the Neuron SDK is
            not installed and ``"cpu"`` is not among them, a warning says that no kernel will run.

    Returns:
        An object that undoes the replacement: call it, or use it in a ``with`` statement.

    Raises:
        ImportError: verl is not installed.
        RuntimeError: the functions of the installed verl have other arguments; the message names them.
        TypeError: ``devices`` is not an iterable of strings, or is itself a string.
        ValueError: it is installed already; or no kernel runs on one of the devices.
    """
    kinds = checked_devices("nkilib.torch.verl.install", devices)
    verl: Any = importlib.import_module("verl")
    kernel: Any = importlib.import_module(_KERNEL)
    fused: Any = importlib.import_module(_FUSED).FusedLinearForPPO
    if hasattr(kernel.linear_cross_entropy, "nkilib_devices"):
        raise ValueError("nkilib.torch.verl.install: it is installed already; call the object that it returned first")
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
    warn_without_effect("nkilib.torch.verl.install", kinds)
    stock = kernel.linear_cross_entropy
    return replace(
        "verl",
        (
            Replacement(kernel, "linear_cross_entropy", stock, _scores_of_kernel(stock, kinds)),
            Replacement(fused, "forward", fused.forward, _forward_of_module(fused.forward, kinds)),
        ),
    )
