# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The JAX calls of ``python -m nkilib verify``: cross-entropy under ``jax.jit`` and ``jax.shard_map``, with results as
numpy arrays.

A call whose prerequisite is missing raises an :class:`AbsentError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, PartitionSpec

from nkilib.jax import cross_entropy

Results = dict[str, npt.NDArray[Any]]
_PLATFORM: Final = "neuron"
_AXIS: Final = "positions"


class AbsentError(Exception):
    """Raised if a prerequisite of a call is missing on this machine; the message is a clause that names the
    prerequisite.
    """


def _loss_and_gradient(loss_of: Callable[..., Any], logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Results:
    loss, gradient = jax.jit(jax.value_and_grad(loss_of))(logits, targets)
    return {"loss": np.array(loss), "gradient": np.array(gradient)}


def _check(is_device: bool) -> None:
    if is_device and jax.default_backend() != _PLATFORM:
        raise AbsentError(f"JAX works on {jax.default_backend()}, not on {_PLATFORM}: no JAX NeuronX is installed")


def jitted(is_device: bool, logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Results:
    """Return the mean loss and its gradient as ``loss`` and ``gradient``, computed under ``jax.jit``.

    Args:
        is_device: whether the call must run on a Neuron device.
        logits: [N, V].
        targets: [N] class indices.

    Raises:
        AbsentError: ``is_device`` is set, and JAX has no Neuron device.
    """
    _check(is_device)
    return _loss_and_gradient(cross_entropy, logits, targets)


def sharded(is_device: bool, logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Results:
    """Return what :func:`jitted` returns, computed under ``jax.shard_map`` on a mesh of one device that shards the
    positions.
    """
    _check(is_device)
    mesh = Mesh(np.array(jax.devices()[:1]), (_AXIS,))
    make_spec: Any = PartitionSpec  # has no types
    spec = make_spec(_AXIS)

    def loss_of(scores: Any, classes: Any) -> Any:
        def of_shard(shard: Any, own: Any) -> Any:
            return cross_entropy(shard, own, reduction="none")

        losses = jax.shard_map(of_shard, mesh=mesh, in_specs=(spec, spec), out_specs=spec, check_vma=False)
        return losses(scores, classes).mean()

    return _loss_and_gradient(loss_of, logits, targets)
