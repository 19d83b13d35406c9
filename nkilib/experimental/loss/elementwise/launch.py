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
        tensors_hbm: by name, the first one first.
        tiling: of the flat stream.
    """

    tensors_hbm: dict[str, nl.NkiTensor]
    tiling: ElementwiseTiling

    @property
    def elements(self) -> int:
        """Of each tensor."""
        return prod(next(iter(self.tensors_hbm.values())).shape)

    def flats(self, names: tuple[str, ...] | None = None) -> dict[str, nl.NkiTensor]:
        """Those tensors, or all, as [elements] by name."""
        chosen = tuple(self.tensors_hbm) if names is None else names
        return {name: self.tensors_hbm[name].reshape((self.elements,)) for name in chosen}
