# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of TRL that are replaced: their location and signature, which are checked, and their operands.

:func:`find_places` finds and checks the functions of the installed TRL. Their operands are a model's hidden states and
output layer (:class:`Head`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

# The function that error messages name.
INSTALL: Final = "nkilib.torch.trl.install"
# The release whose functions were compared with ours, as major and minor number.
RELEASE: Final = "1.16"
_UTILS, _GATHER = "trl.trainer.utils", "maybe_gather_lm_head_ctx"

# Results of the token scores beside the log-probability, in the order in which they are returned.
OUTPUTS: Final = ("entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
# The log-probability may be named too; it is returned in any case.
KNOWN_OUTPUTS: Final = frozenset({"log_probs", *OUTPUTS})

_EMPTY: Final = inspect.Parameter.empty


@dataclass(frozen=True)
class Function:
    """A function of TRL, a subclass of ``torch.autograd.Function``.

    Attributes:
        module, attribute: the name that TRL's trainers look up at every call.
        own_module, own_name: the module and name under which TRL defines the function.
        parameters: the arguments in their order, with their defaults.
    """

    module: str
    attribute: str
    own_module: str
    own_name: str
    parameters: Mapping[str, Any]


_SCORES: Final = Function(
    _UTILS,
    "_ChunkedLogProbFunction",
    "trl.kernels.chunked_logprob",
    "ChunkedLogProbFunction",
    {
        **dict.fromkeys(("hidden", "weight", "bias", "targets", "temperature", "chunk_size"), _EMPTY),
        "final_logit_softcapping": None,
        "logit_scale": 1.0,
        "outputs": OUTPUTS,
    },
)
_MODELS: Final = ("student", "teacher")
_DIVERGENCES: Final = Function(
    "trl.trainer.distillation_trainer",
    "ChunkedDivergenceFunction",
    "trl.kernels.chunked_divergence",
    "ChunkedDivergenceFunction",
    {
        **{f"{model}_{name}": _EMPTY for model in _MODELS for name in ("hidden", "weight", "bias")},
        "beta": _EMPTY,
        "temperature": 1.0,
        "student_logit_scale": 1.0,
        "student_final_logit_softcapping": None,
        "teacher_logit_scale": 1.0,
        "teacher_final_logit_softcapping": None,
    },
)


@dataclass(frozen=True)
class PatchedFunction:
    """The location of a function of TRL.

    Attributes:
        module: the module in which trainers look it up.
        attribute: its name there.
        own: TRL's own function.
        utils: ``trl.trainer.utils``.
    """

    module: Any
    attribute: str
    own: Any
    utils: Any

    @property
    def current(self) -> Any:
        """The function that trainers find at this location now."""
        return getattr(self.module, self.attribute)

    def put(self, function: Any) -> None:
        """Make every trainer call ``function``."""
        setattr(self.module, self.attribute, function)

    @contextmanager
    def gathered(self, *layers: tuple[Tensor | None, ...]) -> Iterator[None]:
        """Return TRL's context in which ZeRO-3 has gathered the parameters of the given output layers."""
        with ExitStack() as contexts:
            for parameters in layers:
                contexts.enter_context(getattr(self.utils, _GATHER)(*parameters))
            yield


class Places(NamedTuple):
    """The locations of both functions of TRL that are replaced.

    Attributes:
        scores: the location of the token scores.
        divergences: the location of the divergence of a student from a teacher.
    """

    scores: PatchedFunction
    divergences: PatchedFunction


def find_places() -> Places:
    """Import the installed TRL and return the locations of its functions.

    Raises:
        ImportError: TRL is not installed, or differs from the release that this was written for; the message names the
            differences.
    """
    try:
        trl = import_module("trl")
    except ModuleNotFoundError as error:
        if error.name != "trl":
            raise
        raise ImportError(
            f"{INSTALL}: needs trl {RELEASE}, and there is none; install it with pip install 'trl=={RELEASE}.*'",
            name="trl",
        ) from None
    version = str(trl.__version__)
    faults = [] if version.split(".")[:2] == RELEASE.split(".") else [f"its version is {version}"]
    scores, divergences = (_located(function, faults) for function in (_SCORES, _DIVERGENCES))
    if faults or scores is None or divergences is None:
        raise ImportError(
            f"{INSTALL}: needs the token scores and divergences of trl {RELEASE}, and the trl here differs: "
            f"{'; '.join(faults)}; install trl=={RELEASE}.*, or an nkilib release for this version",
            name="trl",
        )
    return Places(scores, divergences)


def _located(function: Function, faults: list[str]) -> PatchedFunction | None:
    """Return the location of a function, or None if it is not as expected; differences are added to ``faults``."""
    try:
        utils, module = import_module(_UTILS), import_module(function.module)
        own = getattr(import_module(function.own_module), function.own_name)
    except (ImportError, AttributeError) as error:
        faults.append(f"it has no {function.own_module}.{function.own_name} ({error})")
        return None
    needed = ((module, function.module, function.attribute), (utils, _UTILS, _GATHER))
    missing = [f"{path} has no {name}" for owner, path, name in needed if not hasattr(owner, name)]
    faults += [difference for difference in (*missing, *_differences(function, own)) if difference not in faults]
    return PatchedFunction(module, function.attribute, own, utils)


def _differences(function: Function, own: Any) -> list[str]:
    """Return the differences between the arguments of TRL's installed function and those of the release that was read,
    one clause each.
    """
    _, *parameters = inspect.signature(own.forward).parameters.values()  # the first is the context
    names, expected = [parameter.name for parameter in parameters], list(function.parameters)
    if names != expected:
        return [f"{function.own_name} takes ({', '.join(names)}) instead of ({', '.join(expected)})"]
    return [
        f"{function.own_name} has {parameter.name}={parameter.default!r} by default instead of "
        f"{function.parameters[parameter.name]!r}"
        for parameter in parameters
        if parameter.default != function.parameters[parameter.name]
    ]


# Tensors in the order of TRL's arguments; a bias may be missing.
Operands: TypeAlias = Sequence[Tensor | None]


class Head(NamedTuple):
    """The output layer of a model, and the hidden states that it is applied to.

    Attributes:
        hidden: the hidden states [N, D].
        weight: the weight [V, D].
        bias: the bias [V], or None.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, operands: Operands) -> Head:
        """Return the head for hidden states, weight and bias.

        Raises:
            TypeError: hidden states or weight are missing.
        """
        hidden, weight, bias = operands
        if hidden is None or weight is None:
            raise TypeError("nkilib.torch.trl: hidden states and weight must be tensors, got None; pass both")
        return cls(hidden, weight, bias)

    @property
    def parameters(self) -> tuple[Tensor | None, ...]:
        """The weight and the bias."""
        return self.weight, self.bias

    @property
    def num_classes(self) -> int:
        """V, the number of classes. For a weight that ZeRO-3 keeps without elements, it is read from the shape that
        DeepSpeed stores beside it.
        """
        shape = getattr(self.weight, "ds_shape", self.weight.shape)
        return int(shape[0])


class _Rounded(torch.autograd.Function):
    """A bias rounded to another type, in float32; its gradient is not rounded to that type."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = bias.dtype
        return bias.to(dtype).to(torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(ctx.dtype), None


def rounded(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bias with the values that it has in another type, as TRL's token scores read it.

    The gradient, in the type of ``bias``, is that of the rounded values, without rounding.
    """
    if bias.dtype == dtype:
        return bias
    function: Callable[..., Tensor] = _Rounded.apply
    return function(bias, dtype)


def read_cap(softcap: float | None) -> float | None:
    """Return the cap as TRL reads it: 0 means 1, and the sign does not matter."""
    return None if softcap is None else abs(float(softcap)) or 1.0
