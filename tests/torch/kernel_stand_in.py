"""Stands for the extended cross-entropy kernels: the same arguments and results, computed in float64 by numpy.

With it the tests of this package can hold the torch side to account apart from the kernels. It also notes its launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

Array = Any


def _as_float64(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().numpy()


class StandIn:
    """``kernel[cores](...)`` of a plain function.

    Attributes:
        launches: (cores, keyword arguments) of every call.
    """

    def __init__(self, func: Callable[..., Any], cores: int = 1, launches: list[Any] | None = None) -> None:
        self._func = func
        self._cores = cores
        self.launches: list[Any] = [] if launches is None else launches

    def __getitem__(self, cores: int) -> StandIn:
        return StandIn(self._func, cores, self.launches)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.launches.append((self._cores, kwargs))
        return self._func(*args, **kwargs)


def _capped(logits: Array, softcap: float | None) -> Array:
    if softcap is None:
        return logits
    return np.where(np.isneginf(logits), -np.inf, softcap * np.tanh(logits / softcap))


def _logsumexp(z: Array) -> Array:
    m = z.max(1)
    with np.errstate(invalid="ignore"):
        return m + np.log(np.exp(z - m[:, np.newaxis]).sum(1))


def _smoothed(y: Array, smoothing: float) -> Array:
    return (1 - smoothing) * y + smoothing / y.shape[1]


def _forward(
    logits_hbm: Any,
    targets_hbm: Any,
    class_weight_hbm: Any = None,
    positions_per_batch: int = 32,
    chunk_size: int = 8192,
    dtype: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    lse_square_scale: float = 0.0,
    with_argmax: bool = False,
    with_entropy: bool = False,
) -> Any:
    z = _capped(_as_float64(logits_hbm), logit_softcap)
    n, v = z.shape
    rows = np.arange(n)
    w = np.ones(v) if class_weight_hbm is None else _as_float64(class_weight_hbm)
    e = label_smoothing
    lse = _logsumexp(z)
    if targets_hbm.is_floating_point():
        y = _smoothed(_as_float64(targets_hbm), e)
        target_logit = (w * y * z).sum(1)
        loss = lse * (w * y).sum(1) - target_logit + lse_square_scale * lse**2
        position_weight = np.ones(n)
    else:
        targets = targets_hbm.numpy()
        valid = targets != ignore_index
        t = np.where(valid, targets, 0)
        target_logit = np.where(valid, z[rows, t], 0.0)
        position_weight = np.where(valid, w[t], 0.0)
        loss = (1 - e) * w[t] * (lse - z[rows, t]) + lse_square_scale * lse**2
        if e:
            loss += e / v * (w.sum() * lse - (w * z).sum(1))
        loss = np.where(valid, loss, 0.0)
    results = [torch.from_numpy(a.astype(np.float32)) for a in (loss, lse, target_logit, position_weight)]
    if with_argmax:
        results.append(torch.from_numpy(z.argmax(1).astype(np.int32)))
    if with_entropy:
        p = np.exp(z - lse[:, np.newaxis])
        results.append(torch.from_numpy((lse - np.where(p > 0, p * z, 0.0).sum(1)).astype(np.float32)))
    return tuple(results)


def _backward(
    logits_hbm: Any,
    targets_hbm: Any,
    lse_hbm: Any,
    grad_loss_hbm: Any,
    grad_lse_hbm: Any = None,
    grad_logprob_hbm: Any = None,
    class_weight_hbm: Any = None,
    positions_per_batch: int = 32,
    chunk_size: int = 8192,
    dtype: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    lse_square_scale: float = 0.0,
    inplace: bool = False,
) -> Any:
    x = _as_float64(logits_hbm)
    z = _capped(x, logit_softcap)
    n, v = z.shape
    rows = np.arange(n)
    w = np.ones(v) if class_weight_hbm is None else _as_float64(class_weight_hbm)
    e, s = label_smoothing, lse_square_scale
    lse, grad_loss = _as_float64(lse_hbm), _as_float64(grad_loss_hbm)
    grad_lse = np.zeros(n) if grad_lse_hbm is None else _as_float64(grad_lse_hbm)
    grad_logprob = np.zeros(n) if grad_logprob_hbm is None else _as_float64(grad_logprob_hbm)
    softmax = np.exp(z - lse[:, np.newaxis])
    if targets_hbm.is_floating_point():
        wy = w * _smoothed(_as_float64(targets_hbm), e)
        factor = grad_loss * (wy.sum(1) + 2 * s * lse) + grad_lse
        gradient = factor[:, np.newaxis] * softmax - grad_loss[:, np.newaxis] * wy
    else:
        targets = targets_hbm.numpy()
        valid = targets != ignore_index
        t = np.where(valid, targets, 0)
        g, gp = np.where(valid, grad_loss, 0.0), np.where(valid, grad_logprob, 0.0)
        factor = g * ((1 - e) * w[t] + e / v * w.sum() + 2 * s * lse) + grad_lse - gp
        gradient = factor[:, np.newaxis] * softmax - (g * e / v)[:, np.newaxis] * w
        gradient[rows, t] -= g * (1 - e) * w[t] - gp
    if logit_softcap is not None:
        gradient = np.where(np.isneginf(x), 0.0, gradient * (1 - (z / logit_softcap) ** 2))
    if logits_hbm.dtype == torch.bfloat16:
        rounded = torch.from_numpy(gradient.astype(ml_dtypes.bfloat16).view(np.int16)).view(torch.bfloat16)
    else:
        rounded = torch.from_numpy(gradient.astype(np.float32))
    if not inplace:
        return rounded
    logits_hbm.copy_(rounded)
    return logits_hbm


def forward_stand_in() -> StandIn:
    """For ``extended_cross_entropy_forward``."""
    return StandIn(_forward)


def backward_stand_in() -> StandIn:
    """For ``extended_cross_entropy_backward``."""
    return StandIn(_backward)
