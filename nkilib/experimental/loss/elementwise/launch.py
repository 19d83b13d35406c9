"""What forward and backward of a launch have in common."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from nkilib.experimental.loss.elementwise.host.tiling import ElementwiseTiling
from nkilib.nki import nl


@dataclass(frozen=True)
class Launch:
    """Tensors of one shape, and how they are cut up.

    Attributes:
        function: that is named in errors.
        tensors_hbm: in the order of the kind's numbers.
        tiling: of the flat stream.
    """

    function: str
    tensors_hbm: tuple[nl.NkiTensor, ...]
    tiling: ElementwiseTiling

    @property
    def elements(self) -> int:
        """Of each tensor."""
        return prod(self.tensors_hbm[0].shape)

    def flats(self, numbers: tuple[int, ...] | None = None) -> dict[int, nl.NkiTensor]:
        """Those tensors, or all, as [elements] by number."""
        chosen = range(len(self.tensors_hbm)) if numbers is None else numbers
        return {number: self.tensors_hbm[number].reshape((self.elements,)) for number in chosen}
