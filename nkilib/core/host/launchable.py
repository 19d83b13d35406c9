# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A kernel that can be launched on its own, made from a plain function of NKI code.

:func:`launchable` makes the kernel, with its guarantee and its work; :func:`launched` returns the kernel that was made
of a function. To type checkers, a kernel is a :class:`Launchable`, and its results are :data:`HostArray`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from nkilib.base.guarantee import Guarantee, states_guarantee
from nkilib.base.statements import StatesTrips, StatesWork, replayable, states_trips, states_work
from nkilib.nki import nki

if TYPE_CHECKING:
    from nkilib.nki import nl

Parameters = ParamSpec("Parameters")
Results_co = TypeVar("Results_co", covariant=True)
Results = TypeVar("Results")

HostArray: TypeAlias = Any
"""What a launch returns for a tensor: an array of numpy for arrays of numpy, a tensor of torch for those of torch, a
:class:`~nkilib.simulator.Spec` for specs. Type checkers cannot derive it from the arguments and take it for `Any`."""


# The kernels by function: every caller gets the same kernel.
_MADE: Final[dict[Callable[..., Any], Any]] = {}


class Launchable(Protocol[Parameters, Results_co]):
    """A kernel as a type checker sees it, with the arguments of its function, and its results as host arrays.

    ``kernel[2](...)`` runs on a logical NeuronCore of two cores. ``kernel(...)`` runs on as many cores as
    ``NEURON_LOGICAL_NC_CONFIG`` gives, or on one. At run time a kernel is the object that ``nki.jit`` returns.
    """

    __name__: str

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Results_co:
        """Launch the kernel. If another kernel in the simulator makes the call, run this kernel as a part of that
        one.
        """

    def __getitem__(self, grid: int | tuple[int]) -> Launchable[Parameters, Results_co]:
        """Return the same kernel for a launch on ``grid`` cores of a logical NeuronCore."""


@overload
def launchable(
    function: Callable[Parameters, nl.NkiTensor],
    guarantee: Guarantee,
    work: StatesWork,
    trips: StatesTrips | None = None,
) -> Launchable[Parameters, HostArray]: ...
@overload
def launchable(
    function: Callable[Parameters, tuple[nl.NkiTensor, nl.NkiTensor]],
    guarantee: Guarantee,
    work: StatesWork,
    trips: StatesTrips | None = None,
) -> Launchable[Parameters, tuple[HostArray, HostArray]]: ...
@overload
def launchable(
    function: Callable[Parameters, tuple[nl.NkiTensor, ...]],
    guarantee: Guarantee,
    work: StatesWork,
    trips: StatesTrips | None = None,
) -> Launchable[Parameters, tuple[HostArray, ...]]: ...
@overload
def launchable(
    function: Callable[Parameters, nl.NkiTensor | tuple[nl.NkiTensor, ...]],
    guarantee: Guarantee,
    work: StatesWork,
    trips: StatesTrips | None = None,
) -> Launchable[Parameters, HostArray]: ...
def launchable(
    function: Callable[..., Any], guarantee: Guarantee, work: StatesWork, trips: StatesTrips | None = None
) -> Any:
    """Make a kernel of a function of NKI code with ``nki.jit``, and mark the kernel as replayable
    (:func:`nkilib.nki.replayable`).

    To type checkers the kernel has the arguments of the function. It returns one :data:`HostArray`, a pair or a tuple
    of them, as the annotation of the function says. If the annotation is a union of one result and a tuple, type
    checkers take the result for ``Any``.

    Args:
        function: the plain function.
        guarantee: the promises of the kernel.
        work: a function that gives the work of a launch from its arguments.
        trips: a function that gives the largest number of iterations of each loop whose iteration count depends on the
            data, from the arguments of a launch.
    """
    stated = replayable(states_guarantee(guarantee)(states_work(work)(function)))
    kernel = _MADE[function] = nki.jit(stated if trips is None else states_trips(trips)(stated))
    return kernel


@overload
def launched(function: Callable[Parameters, nl.NkiTensor]) -> Launchable[Parameters, HostArray]: ...
@overload
def launched(
    function: Callable[Parameters, tuple[nl.NkiTensor, nl.NkiTensor]],
) -> Launchable[Parameters, tuple[HostArray, HostArray]]: ...
@overload
def launched(
    function: Callable[Parameters, tuple[nl.NkiTensor, ...]],
) -> Launchable[Parameters, tuple[HostArray, ...]]: ...
@overload
def launched(
    function: Callable[Parameters, nl.NkiTensor | tuple[nl.NkiTensor, ...]],
) -> Launchable[Parameters, HostArray]: ...
def launched(function: Callable[..., Any]) -> Any:
    """Return the kernel that :func:`launchable` made of a function.

    Raises:
        LookupError: :func:`launchable` made no kernel of the function.
    """
    kernel = _MADE.get(function)
    if kernel is None:
        raise LookupError(f"launched: {function.__name__} must be in the row of a loss, which makes it launchable")
    return kernel
