# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The modelled time of a launch of the kernels, from shapes only. For host code, and in the simulator only."""

from __future__ import annotations

from typing import Any

from nkilib.core.host.launchable import Launchable
from nkilib.experimental.softmax.host import (
    log_softmax_backward,
    log_softmax_forward,
    softmax_backward,
    softmax_forward,
)
from nkilib.experimental.softmax.tensors import Kind
from nkilib.simulator import ModelParameters, Profile, profile, spec, using
from nkilib.simulator.terms.dtypes import as_dtype

_KERNELS: dict[tuple[Kind, str], Launchable[..., Any]] = {
    (Kind.SOFTMAX, "forward"): softmax_forward,
    (Kind.SOFTMAX, "backward"): softmax_backward,
    (Kind.LOG_SOFTMAX, "forward"): log_softmax_forward,
    (Kind.LOG_SOFTMAX, "backward"): log_softmax_backward,
}


def profile_softmax_launch(
    shape: tuple[int, ...],
    axis: int,
    dtype: Any,
    kind: Kind,
    direction: str,
    *,
    target: str = "trn2",
    cores: int = 2,
    parameters: ModelParameters | None = None,
    **options: Any,
) -> Profile:
    """Return the modelled profile of one launch of a softmax kernel.

    Example::

        print(profile_softmax_launch((8, 12, 1024, 1024), -1, "bfloat16", Kind.SOFTMAX, "forward"))

    Args:
        shape: the shape of all tensors.
        axis: the axis of the kernel.
        dtype: the type of all tensors, an NKI type or the name of one.
        kind: softmax or log-softmax.
        direction: ``"forward"`` or ``"backward"``.
        target: the generation of the device, such as ``"trn2"``.
        cores: the number of cores of the launch.
        parameters: the values that the performance model assumes where no figures are published; None for the defaults.
        options: further keyword arguments of the kernel, such as ``chunk_size``.

    Raises:
        AssertionError: if the kernel does not accept the arguments.
        NkiValidationError: if the hardware does not support the arguments.
    """
    tensor = spec(shape, as_dtype(dtype))
    tensors = [tensor] if direction == "forward" else [tensor, tensor]
    with using(target=target):
        return profile(_KERNELS[kind, direction][cores], *tensors, axis, parameters=parameters, **options)
