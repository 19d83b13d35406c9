# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``install``: makes TRL's trainers score tokens and compare models on the kernels.

Each replaced function of TRL is a router, which passes a call to a recipe, computed by the kernels, or to TRL's own
code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import torch
from torch import Tensor

from nkilib.experimental.loss.distillation.launch import LEAST_TEMPERATURE, MOST_TEMPERATURE
from nkilib.experimental.loss.linear.launch import FEATURES_MAX, FEATURES_MIN, LOGIT_SCALE_MAX, LOGIT_SCALE_MIN
from nkilib.torch.dispatch.checks import autocast_dtype
from nkilib.torch.dispatch.devices import NATIVE_DEVICE
from nkilib.torch.functions.linear_distillation.checks import most_hidden_bytes
from nkilib.torch.functions.linear_distillation.functional import LinearDistillationOutputs, linear_distillation_loss
from nkilib.torch.functions.linear_token_scores.functional import linear_token_scores
from nkilib.torch.replacement import checked_devices, warn_without_effect
from nkilib.torch.trl.contract import (
    INSTALL,
    KNOWN_OUTPUTS,
    OUTPUTS,
    Head,
    Operands,
    PatchedFunction,
    find_places,
    read_cap,
    rounded,
)
from nkilib.torch.trl.deepspeed_zero3 import gathered_results, is_sharded

# The results of TRL's token scores: log-probability, entropy, log sum p^2, mean logit, whether the target is argmax.
TokenResults: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# nkilib's name of a result, by TRL's.
_NAMES: Final = {
    "entropy": "entropy",
    "log_sum_sq_probs": "log_sum_squares",
    "mean_logits": "mean_logit",
    "is_top1": "argmax",
}


@dataclass(frozen=True)
class ScoreRecipe:
    """The arguments of TRL's ``ChunkedLogProbFunction`` beside tensors and ``chunk_size``, and its results by
    :func:`nkilib.torch.linear_token_scores`.

    Attributes:
        temperature: the divisor of the logits.
        softcap: c of c * tanh(logits / c), before the temperature; None applies no cap.
        logit_scale: the factor of the logits, applied first.
        outputs: names of the results beside the log-probability.
    """

    temperature: float
    softcap: float | None
    logit_scale: float
    outputs: tuple[str, ...]

    def is_supported(self, head: Head) -> bool:
        """Return whether the kernels compute these scores; TRL's own code computes the others."""
        if any(tensor is not None and tensor.dtype == torch.float64 for tensor in head):
            return False
        features = FEATURES_MIN <= head.hidden.shape[-1] <= FEATURES_MAX
        has_scale = LOGIT_SCALE_MIN <= self.logit_scale <= LOGIT_SCALE_MAX
        return features and has_scale and KNOWN_OUTPUTS.issuperset(self.outputs)

    def results(self, operands: Operands) -> TokenResults:
        """Return TRL's five results [N], the first two of which are differentiable.

        Args:
            operands: hidden states [N, D], weight [V, D], bias [V], and targets [N], int64.

        Raises:
            TypeError, ValueError, RuntimeError, IndexError, NotImplementedError: see
                :func:`nkilib.torch.linear_token_scores`.
        """
        head, targets = Head.of(operands[:3]), operands[3]
        if targets is None:
            raise TypeError("nkilib.torch.trl: targets must be a tensor, got None; pass them")
        # The operands may have different dtypes: TRL casts all to autocast's, or to that of the hidden states.
        compute_dtype = autocast_dtype(head.hidden.device) or head.hidden.dtype
        scores = linear_token_scores(
            head.hidden,
            head.weight,
            targets,
            linear_bias=None if head.bias is None else rounded(head.bias, compute_dtype),
            temperature=float(self.temperature),  # configurations have integers too
            logit_scale=float(self.logit_scale),
            logit_softcap=read_cap(self.softcap),
            outputs=tuple(ours for theirs, ours in _NAMES.items() if theirs in self.outputs),
            compute_dtype=compute_dtype,
        )
        is_top1 = None if scores.argmax is None else scores.argmax == targets
        return scores.logprob, scores.entropy, scores.log_sum_squares, scores.mean_logit, is_top1


# The results of TRL's divergences: the divergence, and the student's entropy, which has no gradient.
DivergenceResults: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class LogitOptions:
    """The scaling and capping of one model's logits.

    Attributes:
        scale: the factor of the logits, applied first.
        softcap: c of c * tanh(logits / c), after the scale; None applies no cap.
    """

    scale: float
    softcap: float | None


@dataclass(frozen=True)
class DivergenceRecipe:
    """The arguments of TRL's ``ChunkedDivergenceFunction`` that are not tensors, and its results by
    :func:`nkilib.torch.linear_distillation_loss`.

    Attributes:
        beta: 0 is KL(teacher || student), 1 is KL(student || teacher), and between them is the generalized
            Jensen-Shannon divergence with M = beta * teacher + (1 - beta) * student.
        temperature: the divisor of the logits of both models.
        student, teacher: the logit options of each model.
    """

    beta: float
    temperature: float
    student: LogitOptions
    teacher: LogitOptions

    def is_supported(self, student: Head, teacher: Head) -> bool:
        """Return whether the kernels compute these divergences; TRL's own code computes the others."""
        if any(tensor.dtype == torch.float64 for head in (student, teacher) for tensor in head if tensor is not None):
            return False
        has_features = all(FEATURES_MIN <= model.hidden.shape[-1] <= FEATURES_MAX for model in (student, teacher))
        if not has_features or not _fit_on_chip(student, teacher):
            return False
        has_scales = all(LOGIT_SCALE_MIN <= model.scale <= LOGIT_SCALE_MAX for model in (self.student, self.teacher))
        has_options = 0.0 <= self.beta <= 1.0 and LEAST_TEMPERATURE <= self.temperature <= MOST_TEMPERATURE
        return has_scales and has_options and student.num_classes == teacher.num_classes

    def results(self, operands: Operands) -> DivergenceResults:
        """Return TRL's two results [N]: the divergence, differentiable with respect to the student's operands, and the
        student's entropy.

        Args:
            operands: hidden states [N, D], weight [V, D] and bias [V] of the student, and then of the teacher.

        Raises:
            TypeError, ValueError, RuntimeError, NotImplementedError: see :func:`nkilib.torch.linear_distillation_loss`.
        """
        student, teacher = Head.of(operands[:3]), Head.of(operands[3:])
        compute_dtype = _products(student, teacher)
        with _without_autocast(student.hidden.device):
            results = linear_distillation_loss(
                student.hidden,
                student.weight,
                teacher.hidden.detach(),
                teacher.weight.detach(),
                linear_bias=student.bias,
                teacher_bias=None if teacher.bias is None else teacher.bias.detach(),
                beta=float(self.beta),  # configurations have integers too
                temperature=float(self.temperature),
                temperature_squared=False,
                reduction="none",
                logit_scale=float(self.student.scale),
                logit_softcap=read_cap(self.student.softcap),
                teacher_logit_scale=float(self.teacher.scale),
                teacher_logit_softcap=read_cap(self.teacher.softcap),
                outputs=("entropy",),
                compute_dtype=compute_dtype,
            )
        scores = cast(LinearDistillationOutputs, results)
        return scores.loss, cast(Tensor, scores.entropy)


def _products(student: Head, teacher: Head) -> torch.dtype | None:
    """Return a dtype of the products that rounds no more than TRL does; None to multiply each model in the dtype of its
    operands.

    TRL rounds hidden states and weight of a model to autocast's dtype, or to that of its hidden states, and multiplies
    them in float32. The kernels round all hidden states and weights to one dtype, or none. So if the models differ,
    operands that TRL rounds are multiplied in float32 without rounding. Neither rounds a bias.
    """
    heads = (student, teacher)
    autocast = autocast_dtype(student.hidden.device)
    dtypes = [autocast or model.hidden.dtype for model in heads]
    pairs = list(zip(heads, dtypes, strict=True))
    if all(head.hidden.dtype == dtype == head.weight.dtype for head, dtype in pairs):
        return None
    return torch.float32 if len(set(dtypes)) > 1 else dtypes[0]


def _fit_on_chip(student: Head, teacher: Head) -> bool:
    """Return whether the hidden states of both models, in the dtypes of their products, fit on chip together."""
    dtype = _products(student, teacher)
    sizes = [model.hidden.shape[-1] * (dtype or model.hidden.dtype).itemsize for model in (student, teacher)]
    return sum(sizes) <= most_hidden_bytes(dtype is not None)


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast, so that a call rounds its operands only to the ``compute_dtype`` that it
    names.
    """
    is_on = autocast_dtype(device) is not None
    return torch.autocast(device.type, enabled=False) if is_on else nullcontext()


@dataclass(frozen=True, eq=False)
class Installation:
    """One call of ``install`` that has not been undone; instances are compared by identity.

    Attributes:
        devices: the device types whose tensors the kernels take.
    """

    devices: frozenset[str]


@dataclass
class Router:
    """An object that replaces a function of TRL, a class whose ``apply`` is called, and passes each call to the kernels
    or to TRL's own code.

    Attributes:
        place: the location of the replaced function.
        installed: the installations that have not been undone, in their order.
    """

    place: PatchedFunction
    installed: list[Installation] = field(default_factory=list)

    def is_for(self, tensor: Tensor) -> bool:
        """Return whether the kernels are installed for the device of a tensor."""
        return any(tensor.device.type in installation.devices for installation in self.installed)

    def add(self, installation: Installation) -> None:
        """Add an installation, and make trainers call this router."""
        self.installed.append(installation)
        self.place.put(self)

    def remove(self, installation: Installation) -> None:
        """Remove an installation, and make trainers call TRL's function again if it was the last."""
        if installation in self.installed:
            self.installed.remove(installation)
        if not self.installed and self.place.current is self:
            self.place.put(self.place.own)


class ScoreRouter(Router):
    """The replacement of ``ChunkedLogProbFunction``."""

    def apply(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        final_logit_softcapping: float | None = None,
        logit_scale: float = 1.0,
        outputs: tuple[str, ...] = OUTPUTS,
    ) -> TokenResults:
        """Return TRL's results, from the kernels where these are installed for the device and take the operands."""
        recipe = ScoreRecipe(temperature, final_logit_softcapping, logit_scale, outputs)
        head, operands = Head(hidden, weight, bias), (hidden, weight, bias, targets)
        if not self.is_for(hidden) or not recipe.is_supported(head):
            options = (temperature, chunk_size, final_logit_softcapping, logit_scale, outputs)
            own: TokenResults = self.place.own.apply(*operands, *options)
            return own
        if is_sharded(*head.parameters):  # TRL has gathered them around this call
            return gathered_results(recipe, self.place, operands, ((1, 2),))
        return recipe.results(operands)


class DivergenceRouter(Router):
    """The replacement of ``ChunkedDivergenceFunction``."""

    def apply(
        self,
        student_hidden: Tensor,
        student_weight: Tensor,
        student_bias: Tensor | None,
        teacher_hidden: Tensor,
        teacher_weight: Tensor,
        teacher_bias: Tensor | None,
        beta: float,
        temperature: float = 1.0,
        student_logit_scale: float = 1.0,
        student_final_logit_softcapping: float | None = None,
        teacher_logit_scale: float = 1.0,
        teacher_final_logit_softcapping: float | None = None,
    ) -> DivergenceResults:
        """Return TRL's results, from the kernels where these are installed for the device and take the operands."""
        student = Head(student_hidden, student_weight, student_bias)
        teacher = Head(teacher_hidden, teacher_weight, teacher_bias)
        of_student = LogitOptions(student_logit_scale, student_final_logit_softcapping)
        of_teacher = LogitOptions(teacher_logit_scale, teacher_final_logit_softcapping)
        recipe, operands = DivergenceRecipe(beta, temperature, of_student, of_teacher), (*student, *teacher)
        if not self.is_for(student_hidden) or not recipe.is_supported(student, teacher):
            scales = (of_student.scale, of_student.softcap, of_teacher.scale, of_teacher.softcap)
            own: DivergenceResults = self.place.own.apply(*operands, beta, temperature, *scales)
            return own
        if is_sharded(*student.parameters, *teacher.parameters):
            with self.place.gathered(student.parameters, teacher.parameters):  # as TRL's own function does
                return gathered_results(recipe, self.place, operands, ((1, 2), (4, 5)))
        return recipe.results(operands)


def router_of(place: PatchedFunction, kind: type[Router]) -> Router:
    """Return the router at a location, or a new one, which replaces the function from its first installation on.

    Raises:
        RuntimeError: the location holds neither TRL's function nor a router.
    """
    current: Any = place.current
    if isinstance(current, kind):
        return current
    if current is place.own:
        return kind(place)
    router_class = current if isinstance(current, type) else type(current)
    raise RuntimeError(
        f"{INSTALL}: {place.module.__name__}.{place.attribute} must be TRL's own {place.own.__qualname__}, got "
        f"{router_class.__module__}.{router_class.__qualname__}; undo what has replaced it, and install again"
    )


class Undo:
    """Undoes an installation when it is called, or at the end of a ``with`` block.

    A second call does nothing. Other installations stay: TRL's functions are restored when the last one is undone. If
    something else has replaced them in the meantime, it stays, and the functions that it calls are TRL's own code
    again. The backward of results computed before still works.

    Attributes:
        devices: the device types whose tensors the kernels take.
    """

    def __init__(self, routers: Sequence[Router], installation: Installation) -> None:
        self._routers = routers
        self._installation = installation
        self.devices = installation.devices

    def __call__(self) -> None:
        for router in self._routers:
            router.remove(self._installation)

    def __enter__(self) -> Undo:
        return self

    def __exit__(self, *error: object) -> None:
        self()


def install(devices: Iterable[str] = (NATIVE_DEVICE,)) -> Undo:
    """Make the trainers of TRL 1.16 compute token scores and divergences on the kernels, from hidden states.

    SFT, DPO, KTO, GRPO and RLOO get log-probability, entropy and metrics of every token from one function of hidden
    states, ``trl.kernels.ChunkedLogProbFunction``. Distillation gets the divergence of the student from the teacher
    from another function, ``trl.kernels.chunked_divergence.ChunkedDivergenceFunction``. The trainers look both up at
    each call. Off CUDA devices these functions compute logits in tiles; the first rounds them to the dtype of the
    products, and the second multiplies in float32. After the installation the same calls go to
    :func:`nkilib.torch.linear_token_scores` and :func:`nkilib.torch.linear_distillation_loss`: no logits in memory, one
    launch in the forward and one in the backward, float32 results of unrounded logits, and gradients accumulated in
    float32 with the dtypes of their tensors. Install before or after a trainer is built, also several times: each
    installation adds its devices.

    TRL's own code still computes calls on another device, in float64, with fewer than 16 or more than 16,384 features,
    with a logit scale outside of 1e-6 to 1e6, or with an unknown output; and divergences with a ``beta`` outside of 0
    to 1, a temperature outside of 1e-3 to 1e6, models with different vocabularies, or features of both models that do
    not fit on chip together (16,384 in float32, 32,768 in 16 bits).

    Args:
        devices: the device types whose tensors the kernels take: ``"neuron"``, the native device of torch-neuronx,
            ``"xla"``, the older one, and ``"cpu"``, where the kernels are simulated, for tests. If the Neuron SDK is
            not installed and ``"cpu"`` is not among them, a warning says that no kernel will run.

    Returns:
        An object that undoes the replacement: call it, or use it in a ``with`` statement.

    Raises:
        ImportError: TRL is not installed, is another release, or its functions take other arguments; the message names
            the differences.
        TypeError: ``devices`` is not an iterable of strings, or is itself a string.
        ValueError: no device, or a device on which no kernel runs.
        RuntimeError: something else has already replaced one of TRL's functions.
    """
    installation = Installation(checked_devices(INSTALL, devices))
    places = find_places()
    warn_without_effect(INSTALL, installation.devices)
    routers = (router_of(places.scores, ScoreRouter), router_of(places.divergences, DivergenceRouter))
    for router in routers:
        router.add(installation)
    return Undo(routers, installation)
