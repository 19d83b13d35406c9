# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``install``: makes TorchTitan 0.3 compute its losses on the kernels, and its chunked losses from hidden states,
without logits.

The replacements are made by :func:`_cross_entropy_loss`, :func:`_compute_logprobs` and :func:`_call` (the ``__call__``
of ``ChunkedLossWrapper``). A replacement passes a call to a loss of this package, or to TorchTitan's own code if the
kernels do not take it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor

from nkilib.experimental.loss.linear.launch import FEATURES_MAX, FEATURES_MIN
from nkilib.torch.dispatch.dtensors import dtensor
from nkilib.torch.dispatch.operator import TILE_DTYPES
from nkilib.torch.replacement import Release, Replacement, Undo, checked_devices, replace, warn_without_effect
from nkilib.torch.torchtitan import losses
from nkilib.torch.torchtitan.linear import linear_loss, logprobs_of, loss_by_head, reason_against
from nkilib.torch.torchtitan.losses import MTP_SCALE, predictions_of

_CALLER: Final = "nkilib.torch.torchtitan.install"
_RELEASE: Final = Release(_CALLER, "torchtitan", "0.3.0")
_LOSSES: Final = "torchtitan.components.loss"
# The losses that use logits only in compute_logprobs.
_POLICY_LOSSES: Final = ("DAPOLoss", "GRPOLoss")
_POLICY_MODULES: Final = ("torchtitan.experiments.rl.losses.dapo", "torchtitan.experiments.rl.losses.grpo")
# The loss of multi-token prediction, which gets a tuple of predictions and one of labels since September 2026.
_MTP_LOSSES: Final = ("MTPLoss",)
_MTP_MODULES: Final = ("torchtitan.models.deepseek_v3.mtp",)
_WIDTHS: Final = range(FEATURES_MIN, FEATURES_MAX + 1)


class _Scores(NamedTuple):
    """Log-probabilities and entropies of the labels, computed from hidden states, which a policy loss gets in place of
    logits.

    The loss passes the object to ``compute_logprobs``, whose replacement returns its tensors unchanged.
    """

    logprob: Tensor
    entropy: Tensor


def _version() -> str:
    package: Any = sys.modules["torchtitan"]
    version = getattr(package, "__version__", None)
    return importlib.metadata.version("torchtitan") if version is None else str(version)


def _is_on(logits: Tensor, devices: frozenset[str]) -> bool:
    return logits.device.type in devices and logits.dtype in TILE_DTYPES


def _cross_entropy_loss(theirs: Callable[..., Tensor], devices: frozenset[str]) -> Callable[..., Tensor]:
    def cross_entropy_loss(pred: Tensor, labels: Tensor, *, global_vocab_size: int | None = None) -> Tensor:
        ours = losses.cross_entropy_loss if _is_on(pred, devices) else theirs
        return ours(pred, labels, global_vocab_size=global_vocab_size)

    cross_entropy_loss.nkilib_devices = devices  # type: ignore[attr-defined]
    return cross_entropy_loss


def _compute_logprobs(theirs: Callable[..., Any], devices: frozenset[str]) -> Callable[..., Any]:
    def compute_logprobs(logits: Tensor | _Scores, labels: Tensor, *, return_entropy: bool = False) -> Any:
        if isinstance(logits, _Scores):
            return tuple(logits) if return_entropy else logits.logprob
        ours = losses.compute_logprobs if _is_on(logits, devices) else theirs
        return ours(logits, labels, return_entropy=return_entropy)

    return compute_logprobs


def _takes(head: Any, hidden: Any, devices: frozenset[str]) -> bool:
    """Return whether the losses from hidden states can be computed from this output layer and these hidden states.

    Args:
        head: the output layer; None if none is set.
        hidden: the hidden states, or another object that the trainer passed in their place.
        devices: the device types given to :func:`install`.
    """
    if head is None or not isinstance(hidden, Tensor) or dtensor(hidden) is not None:
        return False
    if not _is_on(hidden, devices) or hidden.shape[-1] not in _WIDTHS:
        return False
    titan: Any = sys.modules.get("torchtitan.distributed.spmd_types")
    is_split = titan is not None and titan.spmd_mesh_size("tp") > 1  # of plain tensors; 1 with DTensors
    return not is_split and reason_against(head) is None and head.weight.dtype in TILE_DTYPES


def _is_one_of(loss: object, names: Sequence[str], modules: Sequence[str]) -> bool:
    """Return whether the class of a loss has one of these names and is defined in one of these modules.

    Names are compared, so that modules of TorchTitan that are not loaded need not be imported.
    """
    return type(loss).__name__ in names and type(loss).__module__ in modules


def _policy_loss(
    wrapper: Any,
    hidden: Tensor,
    labels: Tensor,
    global_valid_tokens: Tensor | float | None,
    loss_inputs: dict[str, Any],
) -> tuple[Tensor, dict[str, Tensor]]:
    metrics: dict[str, Tensor] = {}

    def scored(rows: Tensor) -> tuple[Tensor, ...]:
        return logprobs_of(wrapper.lm_head, rows, labels, with_entropy=True)

    def reduced(logprob: Tensor, entropy: Tensor) -> Tensor:
        loss: Tensor
        loss, loss_metrics = wrapper.loss_fn(_Scores(logprob, entropy), labels, global_valid_tokens, **loss_inputs)
        metrics.update(loss_metrics)
        return loss

    return loss_by_head(wrapper.lm_head, hidden, labels, scored, reduced), metrics


def _call(wrapper: Any, cross_entropy: type, devices: frozenset[str]) -> Callable[..., Any]:
    theirs = wrapper.__call__

    def call(
        self: Any, pred: Any, labels: Any, global_valid_tokens: Tensor | float | None = None, **loss_inputs: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = pred if isinstance(pred, tuple) else (pred,)
        if type(self) is wrapper and all(_takes(self.lm_head, each, devices) for each in hidden):
            if isinstance(pred, tuple):
                if _is_one_of(self.loss_fn, _MTP_LOSSES, _MTP_MODULES):
                    predictions = predictions_of(str(_CALLER), pred, labels, self.loss_fn.mtp_scale)
                    return linear_loss(self.lm_head, predictions, global_valid_tokens), {}
            elif type(self.loss_fn) is cross_entropy:
                predictions = predictions_of(str(_CALLER), pred, labels, MTP_SCALE)
                return linear_loss(self.lm_head, predictions, global_valid_tokens), {}
            elif _is_one_of(self.loss_fn, _POLICY_LOSSES, _POLICY_MODULES):
                return _policy_loss(self, pred, labels, global_valid_tokens, loss_inputs)
        return theirs(self, pred, labels, global_valid_tokens, **loss_inputs)

    return call


def install(devices: Sequence[str] = ("neuron",)) -> Undo:
    """Make TorchTitan's losses run on the kernels, and those of ``ChunkedLossWrapper`` from hidden states.

    After the installation, for tensors on one of these devices,

    - ``ChunkedLossWrapper`` around ``CrossEntropyLoss`` or ``MTPLoss`` (multi-token prediction) computes what
      :class:`~nkilib.torch.torchtitan.LinearCrossEntropyLoss` does, in one piece for any ``num_chunks``;
    - ``ChunkedLossWrapper`` around ``DAPOLoss`` or ``GRPOLoss`` of ``torchtitan.experiments.rl`` passes the loss
      log-probabilities and entropies of :func:`nkilib.torch.linear_token_scores`;
    - ``cross_entropy_loss`` and ``compute_logprobs`` are those of :mod:`nkilib.torch.torchtitan`, in every module of
      TorchTitan that has imported one by name too. A ``CrossEntropyLoss`` that was built before keeps the old function.

    ``ChunkedLossWrapper`` stays TorchTitan's own around any other loss, with tensor parallelism, and with an output
    layer that is not a plain ``Linear`` of 16 to 16,384 features in a dtype of the kernels. So do its subclasses.

    Configurations and trainers stay as they are.

    Args:
        devices: the device types, as in ``tensor.device.type``; ``"cpu"`` runs the simulator. If the Neuron SDK is
            not installed and ``"cpu"`` is not among them, a warning says that no kernel will run.

    Returns:
        An object that undoes the replacement: call it, or use it in a ``with`` statement.

    Raises:
        ImportError: TorchTitan is not installed.
        RuntimeError: the functions of the installed TorchTitan have other arguments; the message names them.
        TypeError: ``devices`` is not an iterable of strings, or is itself a string.
        ValueError: it is installed already; or no kernel runs on one of the devices.
    """
    kinds = checked_devices(str(_CALLER), devices)
    titan: Any = importlib.import_module(_LOSSES)
    if hasattr(titan.cross_entropy_loss, "nkilib_devices"):
        raise ValueError(f"{_CALLER}: it is installed already; call the object that it returned first")
    wrapper = titan.ChunkedLossWrapper
    _RELEASE.check(
        _version(),
        {
            f"{_LOSSES}.cross_entropy_loss": (titan.cross_entropy_loss, "(pred, labels, *, global_vocab_size=None)"),
            f"{_LOSSES}.compute_logprobs": (titan.compute_logprobs, "(logits, labels, *, return_entropy=False)"),
            f"{_LOSSES}.ChunkedLossWrapper.__call__": (
                wrapper.__call__,
                "(self, pred, labels, global_valid_tokens=None, **loss_inputs)",
            ),
            f"{_LOSSES}.ChunkedLossWrapper.set_lm_head": (wrapper.set_lm_head, "(self, lm_head)"),
        },
    )
    warn_without_effect(_CALLER, kinds)
    functions = {
        "cross_entropy_loss": _cross_entropy_loss(titan.cross_entropy_loss, kinds),
        "compute_logprobs": _compute_logprobs(titan.compute_logprobs, kinds),
    }
    of_functions = [Replacement(titan, name, getattr(titan, name), ours) for name, ours in functions.items()]
    call = Replacement(wrapper, "__call__", wrapper.__call__, _call(wrapper, titan.CrossEntropyLoss, kinds))
    return replace("torchtitan", (*of_functions, call))
