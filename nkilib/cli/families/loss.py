# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The base of the families of losses: the tensors of a launch are found from the signature of the kernel."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from .family import Family

if TYPE_CHECKING:
    from nkilib.simulator import Profile
    from nkilib.simulator.profiling.trips import AskedTrips


class TensorSize(NamedTuple):
    """The shape of a tensor that is passed to the kernel, and the name of its type."""

    shape: tuple[int, ...]
    dtype: str


class NoSizes(NamedTuple):
    """The empty tiling of a kernel that has nothing to choose."""


SCALAR = TensorSize((1,), "float32")


@dataclass(frozen=True)
class LossKernels(Family):
    """The forward and backward kernels of a loss, modelled with the mean as reduction. Sizes that are None are the
    kernel's choice; this base class has no sizes.

    Attributes:
        ALWAYS: the names of optional tensors that are passed to the kernel in every launch.
    """

    SIZES: ClassVar[dict[str, str]] = {}
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    CHOOSER: ClassVar[str] = ""
    CONDITION: ClassVar[str] = ""
    ALWAYS: ClassVar[tuple[str, ...]] = ()

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return f"{self.options.family}_{self.direction}"

    def chosen(self, **arguments: Any) -> Any:
        """Return the empty tiling, because there is nothing to choose."""
        return NoSizes()

    def tilings(self) -> Iterable[Any]:
        """Return no tilings, because there is nothing to choose."""
        return ()

    @property
    def matrix(self) -> TensorSize:
        """The size of a large tensor, [N, V] in the type of ``--dtype``."""
        return TensorSize(self.shape, self.dtype)

    @abstractmethod
    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Return the size of a tensor other than the upstream gradient; ``arguments`` are options of the kernel."""

    def launch_size(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Return the size of any tensor of the launch, also of the upstream gradient: one number for a mean."""
        return SCALAR if tensor == "grad_loss" else self.size_of(tensor, arguments)

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Profile a launch without optional tensors, except those in ``ALWAYS`` and ``arguments``."""
        from nkilib.experimental import loss
        from nkilib.simulator import profile, spec, using

        kernel = getattr(loss, self.kernel)
        tensors: dict[str, Any] = {}
        for name, parameter in inspect.signature(kernel).parameters.items():
            if not name.endswith("_hbm"):
                continue
            tensor, is_optional = name.removesuffix("_hbm"), str(parameter.annotation).endswith("| None")
            if is_optional and tensor not in self.ALWAYS:
                tensors[name] = None
            else:
                tensors[name] = spec(*self.launch_size(tensor, arguments))
        with using(target=self.target):
            return profile(kernel[cores], trips=trips, **{**tensors, **tiling._asdict(), **arguments})


class SizedKernels(LossKernels):
    """Losses whose registry entries give the sizes of their tensors."""

    @property
    def row(self) -> Any:
        """The registry entry of the loss, which gives the sizes of its tensors."""
        from nkilib.experimental.loss.registry import LOSSES

        (row,) = (loss for loss in LOSSES if loss.name == self.options.family)
        return row

    def launch_size(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Return the size in the registry entry, which includes the upstream gradient."""
        return self.size_of(tensor, arguments)

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Return the size in the registry entry."""
        size = self.row.size_of(tensor, self.shape, arguments)
        return TensorSize(size.shape, size.dtype or self.dtype)
