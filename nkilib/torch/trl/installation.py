# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``install``: makes TRL's trainers score tokens and compare models on the kernels.

:func:`find_places` finds the functions of the installed TRL that are replaced, and checks their arguments
(:class:`Function`). :class:`PatchedFunction` is the *location* of such a function: the module attribute that trainers
look up. A *router* replaces it (:class:`ScoreRouter`, :class:`DivergenceRouter`): it passes a call to a recipe, which
the kernels compute (:mod:`.recipes`), or to TRL's own code. :class:`Undo` ends an :class:`Installation`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, NamedTuple

from torch import Tensor

from nkilib.torch.dispatch.devices import NATIVE_DEVICE
from nkilib.torch.replacement import checked_devices, warn_without_effect
from nkilib.torch.trl.deepspeed_zero3 import gathered_results, is_sharded
from nkilib.torch.trl.recipes import (
    OUTPUTS,
    DivergenceRecipe,
    DivergenceResults,
    Head,
    LogitOptions,
    ScoreRecipe,
    TokenResults,
)

# The function that error messages name.
INSTALL: Final = "nkilib.torch.trl.install"
# The release whose functions were compared with ours, as major and minor number.
RELEASE: Final = "1.16"
_UTILS, _GATHER = "trl.trainer.utils", "maybe_gather_lm_head_ctx"

_EMPTY: Final = inspect.Parameter.empty


@dataclass(frozen=True)
class Function:
    """A function of TRL that is replaced, a subclass of ``torch.autograd.Function``.

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
    """The location of a replaced function: the module attribute that TRL's trainers look up.

    Attributes:
        module: the module.
        attribute: the name in the module.
        own: TRL's own function.
        utils: ``trl.trainer.utils``.
    """

    module: Any
    attribute: str
    own: Any
    utils: Any

    @property
    def current(self) -> Any:
        """The function at this location now."""
        return getattr(self.module, self.attribute)

    def put(self, function: Any) -> None:
        """Set the function at this location, which trainers then call."""
        setattr(self.module, self.attribute, function)

    @contextmanager
    def gathered(self, *layers: tuple[Tensor | None, ...]) -> Iterator[None]:
        """Return TRL's own context, in which ZeRO-3 gathers the parameters of the given output layers (tuples of
        weight and bias).
        """
        with ExitStack() as contexts:
            for parameters in layers:
                contexts.enter_context(getattr(self.utils, _GATHER)(*parameters))
            yield


def _differences(function: Function, own: Any) -> list[str]:
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


def _located(function: Function, faults: list[str]) -> PatchedFunction | None:
    """Return the location of a function; None if the installed TRL does not define it. Every difference from the
    supported release of TRL is added to ``faults``, as a clause.
    """
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


class Places(NamedTuple):
    """The locations of the two functions of TRL that are replaced.

    Attributes:
        scores: the location of the function that computes token scores.
        divergences: the location of the function that computes the divergence of a student from a teacher.
    """

    scores: PatchedFunction
    divergences: PatchedFunction


def find_places() -> Places:
    """Import the installed TRL and return the locations of its functions.

    Raises:
        ImportError: TRL is not installed, or differs from the release that this module supports; the message names the
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


@dataclass(frozen=True, eq=False)
class Installation:
    """A call of ``install`` that has not been undone. Two instances are equal only if they are the same object.

    Attributes:
        devices: the device types whose tensors the kernels take.
    """

    devices: frozenset[str]


@dataclass
class Router:
    """The replacement of a function of TRL. Its ``apply``, which trainers call, passes a call to the kernels or to
    TRL's own code.

    Attributes:
        place: the location of the replaced function.
        installed: the installations that have not been undone, in their order.
    """

    place: PatchedFunction
    installed: list[Installation] = field(default_factory=list)

    def is_for(self, tensor: Tensor) -> bool:
        """Return whether calls with this tensor go to the kernels: an installation includes the tensor's device."""
        return any(tensor.device.type in installation.devices for installation in self.installed)

    def add(self, installation: Installation) -> None:
        """Add an installation's devices, and make trainers call this router instead of TRL's function."""
        self.installed.append(installation)
        self.place.put(self)

    def remove(self, installation: Installation) -> None:
        """Remove an installation's devices. If no installation is left, make trainers call TRL's function again."""
        if installation in self.installed:
            self.installed.remove(installation)
        if not self.installed and self.place.current is self:
            self.place.put(self.place.own)


class ScoreRouter(Router):
    """The router in place of TRL's ``ChunkedLogProbFunction``, which computes scores of tokens."""

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
        """Return the results of TRL's function, from the kernels if they are installed for the device and take the
        operands, else from TRL's own code.
        """
        recipe = ScoreRecipe(temperature, final_logit_softcapping, logit_scale, outputs)
        head, operands = Head(hidden, weight, bias), (hidden, weight, bias, targets)
        if not self.is_for(hidden) or not recipe.is_supported(head):
            options = (temperature, chunk_size, final_logit_softcapping, logit_scale, outputs)
            own: TokenResults = self.place.own.apply(*operands, *options)
            return own
        if is_sharded(*head.parameters):  # TRL has gathered them around this call
            return gathered_results(recipe, self.place.gathered, operands, ((1, 2),))
        return recipe.results(operands)


class DivergenceRouter(Router):
    """The router in place of TRL's ``ChunkedDivergenceFunction``, which compares a student with a teacher."""

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
        """Return the results of TRL's function, from the kernels if they are installed for the device and take the
        operands, else from TRL's own code.
        """
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
                return gathered_results(recipe, self.place.gathered, operands, ((1, 2), (4, 5)))
        return recipe.results(operands)


def router_of(place: PatchedFunction, kind: type[Router]) -> Router:
    """Return the router at a location, or a new one, which replaces the function when its first installation is added.

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
    """The reverse of an installation: it takes place when this object is called, or at the end of a ``with`` block.

    A second call does nothing. Other installations stay: TRL's functions are restored when the last one is undone. If
    something else has replaced the functions in the meantime, that replacement stays, and the functions that it calls
    are TRL's own code again. The backward of earlier results still works.

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
