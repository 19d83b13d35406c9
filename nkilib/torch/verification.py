# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The PyTorch calls of ``python -m nkilib verify``: small calls on a device, whose results are numpy arrays.

Cross-entropy runs with the default operators (:func:`eager`), with those of ``torch.library`` (:func:`library`),
compiled, in place and on PyTorch/XLA; :func:`collectives` runs all-reduces. A call raises an :class:`AbsentError` if
something that it needs is missing on this machine.
Devices have PyTorch's names: ``"neuron"``, or ``"cpu"`` for the simulator. ``is_device`` selects between them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from nkilib.torch import cross_entropy
from nkilib.torch.dispatch.devices import NATIVE_DEVICE, registrar

Results = dict[str, npt.NDArray[Any]]

_XLA: Final = "torch_xla.core.xla_model"
# The backends of torch.compile; the default traces a graph of each direction and compiles nothing.
_BACKENDS: Final = {NATIVE_DEVICE: "neuron"}
_DEFAULT_BACKEND: Final = "aot_eager"
_COLLECTIVES: Final = {NATIVE_DEVICE: "neuron"}
_DEFAULT_COLLECTIVES: Final = "gloo"


class AbsentError(Exception):
    """Raised if a prerequisite of a call is missing on this machine; the message is a clause that names it."""


def device_of(is_device: bool) -> str:
    """Return the name of the device to run on.

    Raises:
        AbsentError: the native torch-neuronx is not installed.
    """
    if not is_device:
        return "cpu"
    if not hasattr(torch, NATIVE_DEVICE):
        raise AbsentError("no native torch-neuronx is loaded: there is no torch.neuron")
    return NATIVE_DEVICE


def _numpy(tensor: torch.Tensor | None) -> npt.NDArray[Any]:
    if tensor is None:
        raise RuntimeError("there is no gradient")
    return tensor.detach().cpu().numpy().copy()


def _loss_and_gradient(
    loss_of: Callable[..., torch.Tensor], device: Any, logits: npt.NDArray[Any], targets: npt.NDArray[Any]
) -> Results:
    scores = torch.from_numpy(logits).to(device).requires_grad_()
    loss = loss_of(scores, torch.from_numpy(targets).to(device))
    torch.autograd.backward(loss)
    return {"loss": _numpy(loss), "gradient": _numpy(scores.grad)}


def eager(is_device: bool, logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Results:
    """Return the mean loss, its gradient, and a flag: 0 if a device was used without the operators of NKI's ``nki_op``,
    else 1.
    """
    device = device_of(is_device)
    results = _loss_and_gradient(cross_entropy, device, logits, targets)
    is_as_intended = registrar.name == "nki_op" or not is_device
    return {**results, "intended": np.array([float(is_as_intended)], np.float32)}


def library(is_device: bool, logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Results:
    """Return the mean loss and its gradient from the operators of ``torch.library``, which ``NKILIB_TORCH_OPS=library``
    chooses.
    """
    if registrar.name != "library":
        raise RuntimeError(f"the operators are those of {registrar.name}, because {registrar.reason}")
    return _loss_and_gradient(cross_entropy, device_of(is_device), logits, targets)


def compiled(is_device: bool, logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Results:
    """Return the mean loss and its gradient, with forward and backward each compiled by ``torch.compile``."""
    device = device_of(is_device)

    @torch.compile(backend=_BACKENDS.get(device, _DEFAULT_BACKEND), fullgraph=True, dynamic=False)
    def loss_of(scores: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return cross_entropy(2.0 * scores, classes)

    return _loss_and_gradient(loss_of, device, logits / 2.0, targets)


def in_place(is_device: bool, logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Results:
    """Return the memory of the logits after a backward with ``inplace=True``, and the gradient. Both must be equal."""
    scores = torch.from_numpy(logits).to(device_of(is_device)).requires_grad_()
    overwritten = scores * 1.0
    torch.autograd.backward(cross_entropy(overwritten, torch.from_numpy(targets).to(scores.device), inplace=True))
    return {"gradient": _numpy(scores.grad), "logits": _numpy(overwritten)}


def on_xla(is_device: bool, logits: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Results:
    """Return the mean loss and its gradient for tensors of PyTorch/XLA.

    Raises:
        AbsentError: torch_xla is not installed, or has no device.
    """
    if not is_device:
        return _loss_and_gradient(cross_entropy, "cpu", logits, targets)
    try:
        device = import_module(_XLA).xla_device()
    except ImportError as error:
        raise AbsentError("torch_xla is not installed") from error
    return _loss_and_gradient(cross_entropy, device, logits, targets)


def collectives(is_device: bool, values: npt.NDArray[Any], integers: npt.NDArray[Any]) -> Results:
    """Return the results of all-reduces in a group of one rank: maximum and sum of float32, minimum of int32."""
    device = device_of(is_device)
    with tempfile.TemporaryDirectory() as directory:
        backend, store = _COLLECTIVES.get(device, _DEFAULT_COLLECTIVES), Path(directory) / "store"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
        try:
            results = {}
            for name, array, op in (
                ("maximum", values, dist.ReduceOp.MAX),
                ("sum", values, dist.ReduceOp.SUM),
                ("minimum", integers, dist.ReduceOp.MIN),
            ):
                tensor = torch.from_numpy(array.copy()).to(device)
                dist.all_reduce(tensor, op)
                results[name] = _numpy(tensor)
        finally:
            dist.destroy_process_group()
    return results
