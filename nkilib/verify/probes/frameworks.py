# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes that run through PyTorch and JAX: operators, graphs, overwritten memory, collectives.

The probed functions are in ``nkilib.torch.verification`` and ``nkilib.jax.verification``. They are imported only when a
probe runs, so that neither framework has to be installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final

import numpy as np

from nkilib.verify.kernels import inputs
from nkilib.verify.probes.probe import PROMISES, Probe, Reading, same_arguments
from nkilib.verify.step import Array, Observation, Status, Verdict

_TORCH: Final = "nkilib.torch.verification"
_JAX: Final = "nkilib.jax.verification"
_ABSENT: Final = "absent"
# The words with which frameworks say that they have no implementation of something.
_REFUSED: Final = r"not.?(implemented|supported)|unsupported|no (kernel|rule|implementation)|could not run|cannot lower"
_WORDED: Final = "NotImplementedError: no kernel for the device"
_OPERATORS: Final = "NKILIB_TORCH_OPS"
# Two cores, as the framework's compiler takes by itself.
_CORES: Final = 2


@dataclass(frozen=True)
class FrameworkProbe(Probe):
    """A probe whose launch goes through a framework. ``kernel`` holds the names of a module and of a function in it.

    Attributes:
        environment: variables that the framework reads when it is imported.
    """

    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> Mapping[str, str]:
        return self.environment

    def observe(self, is_device: bool) -> Observation:
        module_name, function = self.kernel
        try:
            module = import_module(module_name)
        except ImportError as error:  # the framework is not installed, or too old
            return Observation(notes={_ABSENT: str(error)})
        try:
            arrays = getattr(module, function)(is_device, **self.arguments(is_device))
        except module.AbsentError as error:
            return Observation(notes={_ABSENT: str(error)})
        except Exception as error:  # of the framework, its compiler, or the runtime
            return Observation(error=f"{type(error).__name__}: {error}")
        return Observation(arrays)

    def judge(self, observation: Observation, is_device: bool) -> Verdict:
        if _ABSENT in observation.notes:
            return Verdict(Status.NOT_RUN, observation.notes[_ABSENT])
        return super().judge(observation, is_device)


_POSITIONS: Final = 8
_CLASSES: Final = 50
_LOGITS: Final = 2.0 * inputs.numbers(8, _POSITIONS, _CLASSES)
_TARGETS: Final = inputs.integers(9, _CLASSES, _POSITIONS)


def _softmax() -> Array:
    exponentials = np.exp(_LOGITS.astype(np.float64))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def _loss() -> Array:
    return -np.log(_softmax()[np.arange(_POSITIONS), _TARGETS]).mean()


def _gradient() -> Array:
    gradient = _softmax()
    gradient[np.arange(_POSITIONS), _TARGETS] -= 1.0
    return gradient / _POSITIONS


_RIGHT: Final = {"loss": np.array(_loss()), "gradient": _gradient()}
_TOLERANCE: Final = 1e-4


def _flag(value: float) -> Array:
    return np.array([value], np.float32)


def _probe(
    name: str,
    function: tuple[str, str],
    question: str,
    row: tuple[str, str],
    rests_on_it: str,
    readings: list[Reading],
    results: tuple[str, ...] = ("loss", "gradient"),
    factor: float = 1.0,
    environment: Mapping[str, str] | None = None,
) -> FrameworkProbe:
    return FrameworkProbe(
        name,
        False,
        question,
        row,
        rests_on_it,
        function,
        same_arguments(logits=factor * _LOGITS, targets=_TARGETS),
        results,
        readings,
        _CORES,
        _TOLERANCE,
        environment or {},
    )


def _right_or_refused(who: str) -> list[Reading]:
    return [Reading("they do", _RIGHT), Reading(f"{who} refuses them", {}, refused=_REFUSED, worded=_WORDED)]


OPERATORS: Final = _probe(
    "operators of PyTorch",
    (_TORCH, "eager"),
    "whether the operators that nkilib registers for the device give loss and gradient",
    (PROMISES, "- operators of the real `nki_op`"),
    "nkilib.torch on the native device",
    [
        Reading("they do", {**_RIGHT, "intended": _flag(1)}),
        Reading("those of torch.library do; there is no nki_op, or it refuses", {**_RIGHT, "intended": _flag(0)}),
        Reading("the device has no implementation of them", {}, refused=_REFUSED, worded=_WORDED),
    ],
    ("loss", "gradient", "intended"),
)
LIBRARY: Final = _probe(
    "operators of torch.library",
    (_TORCH, "library"),
    "whether operators of torch.library give loss and gradient on the device",
    (PROMISES, "- operators of `torch.library` on the native device"),
    f"{_OPERATORS}=library, and every release of torch-neuronx whose nki_op refuses an operator",
    _right_or_refused("the device"),
    environment={_OPERATORS: "library"},
)
COMPILED: Final = _probe(
    "torch.compile",
    (_TORCH, "compiled"),
    "whether graphs of torch.compile with the kernels in them give loss and gradient",
    (PROMISES, "- `torch.compile` with the backend `neuron`"),
    "compiled training steps",
    [
        Reading("they do", {"loss": _RIGHT["loss"], "gradient": 2.0 * _gradient()}),
        Reading("the backend refuses them", {}, refused=_REFUSED, worded=_WORDED),
        Reading("the gradient is that of the logits in the graph", _RIGHT),
    ],
)
OVERWRITTEN: Final = _probe(
    "logits of PyTorch in place",
    (_TORCH, "in_place"),
    "whether the gradient stands in the memory of the logits after a backward in place",
    (PROMISES, "- operators of the real `nki_op`"),
    "`inplace=True`, which saves the memory of a gradient",
    [
        Reading("it does", {"gradient": _gradient(), "logits": _gradient()}),
        Reading("it stands elsewhere, the logits are as they were", {"gradient": _gradient(), "logits": _LOGITS}),
    ],
    ("gradient", "logits"),
)
XLA: Final = _probe(
    "tensors of PyTorch/XLA",
    (_TORCH, "on_xla"),
    "whether the kernels give loss and gradient of XLA tensors",
    (PROMISES, "- launching the kernels with XLA tensors"),
    "the older torch-neuronx",
    _right_or_refused("XLA"),
)
_INTEGERS: Final = np.array([2**24 + 1, 5, -3], np.int32)
_FLOATS: Final = np.array([1.5, -2.0, 1e30], np.float32)
COLLECTIVES: Final = FrameworkProbe(
    "all-reduces of PyTorch",
    False,
    "whether the device's collectives take maxima, sums, and minima in int32 (in a group of one)",
    (PROMISES, "- the collectives of `vocab_parallel_cross_entropy`"),
    "losses of shards of the vocabulary",
    (_TORCH, "collectives"),
    same_arguments(values=_FLOATS, integers=_INTEGERS),
    ("maximum", "sum", "minimum"),
    [
        Reading("they do", {"maximum": _FLOATS, "sum": _FLOATS, "minimum": _INTEGERS}),
        Reading(
            "int32 goes through float32",
            {"maximum": _FLOATS, "sum": _FLOATS, "minimum": _INTEGERS.astype(np.float32).astype(np.int32)},
        ),
        Reading("one of them is refused", {}, refused=_REFUSED, worded=_WORDED),
    ],
    _CORES,
)
JITTED: Final = _probe(
    "jax.jit",
    (_JAX, "jitted"),
    "whether programs of jax.jit with the kernels in them give loss and gradient",
    (PROMISES, "- programs of `jax.jit` with the kernels in them"),
    "nkilib.jax on the device",
    _right_or_refused("JAX NeuronX"),
)
SHARDED: Final = _probe(
    "jax.shard_map",
    (_JAX, "sharded"),
    "whether the kernels work under jax.shard_map (on one device)",
    (PROMISES, "- rules of NKI's own operation for `jax.shard_map`"),
    "training on several devices with JAX",
    _right_or_refused("JAX NeuronX"),
)

PROBES: Final = (OPERATORS, LIBRARY, COMPILED, OVERWRITTEN, XLA, COLLECTIVES, JITTED, SHARDED)
