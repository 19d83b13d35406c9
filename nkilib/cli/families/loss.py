# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the families of losses share: a launch made from the kernel's own arguments."""

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
    """Of a tensor of a launch: its shape, and the name of its type."""

    shape: tuple[int, ...]
    dtype: str


class NoSizes(NamedTuple):
    """Of a kernel that is cut up in one way."""


SCALAR = TensorSize((1,), "float32")


@dataclass(frozen=True)
class LossKernels(Family):
    """Forward and backward of a mean; sizes that are None are the kernel's choice. By itself it has none.

    Attributes:
        ALWAYS: optional tensors of the kernel that a launch has.
    """

    SIZES: ClassVar[dict[str, str]] = {}
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    CHOOSER: ClassVar[str] = ""
    CONDITION: ClassVar[str] = ""
    ALWAYS: ClassVar[tuple[str, ...]] = ()

    @property
    def kernel(self) -> str:
        """Its name."""
        return f"{self.options.family}_{self.direction}"

    def chosen(self, **arguments: Any) -> Any:
        """Nothing is chosen."""
        return NoSizes()

    def tilings(self) -> Iterable[Any]:
        """None."""
        return ()

    @property
    def matrix(self) -> TensorSize:
        """A large tensor."""
        return TensorSize(self.shape, self.dtype)

    @abstractmethod
    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Of the tensor of this name, but for the upstream gradient; ``arguments`` are options of the kernel."""

    def launch_size(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """The same, and of the upstream gradient, which is that of a mean."""
        return SCALAR if tensor == "grad_loss" else self.size_of(tensor, arguments)

    def profile(self, tiling: Any, cores: int, trips: AskedTrips | None = None, **arguments: Any) -> Profile:
        """Of a launch without optional tensors, but for those that the arguments give."""
        from nkilib.experimental import loss
        from nkilib.simulator import profile, spec, using

        kernel = getattr(loss, self.kernel)
        given: dict[str, Any] = {}
        for name, parameter in inspect.signature(kernel).parameters.items():
            if not name.endswith("_hbm"):
                continue
            tensor, is_optional = name.removesuffix("_hbm"), str(parameter.annotation).endswith("| None")
            if is_optional and tensor not in self.ALWAYS:
                given[name] = None
            else:
                given[name] = spec(*self.launch_size(tensor, arguments))
        with using(target=self.target):
            return profile(kernel[cores], trips=trips, **{**given, **tiling._asdict(), **arguments})


class SizedKernels(LossKernels):
    """Of losses whose rows in the registry say what their tensors are."""

    @property
    def row(self) -> Any:
        """What says the sizes of its tensors."""
        from nkilib.experimental.loss.registry import LOSSES

        (found,) = (each for each in LOSSES if each.name == self.options.family)
        return found

    def launch_size(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """As the row says, the upstream gradient too."""
        return self.size_of(tensor, arguments)

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """As the row says."""
        size = self.row.size_of(tensor, self.shape, arguments)
        return TensorSize(size.shape, size.dtype or self.dtype)
