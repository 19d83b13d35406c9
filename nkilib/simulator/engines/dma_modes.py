"""The rules that DMA instructions share: priority, descriptor generation, and what it does with an index out of range.

Sources: docstrings of ``dma_copy`` and ``dma_transpose``, and ``nki/deep-dives/nki-dge.rst``.
"""

from __future__ import annotations

from ..core import Core
from ..enums import dge_mode as DgeMode
from ..enums import nc_version
from ..enums import oob_mode as OobMode
from ..errors import NkiValidationError
from ..tensor import NkiTensor

_LOWEST_PRIORITY = 3


def check_oob_mode(oob_mode: OobMode) -> None:
    """Require a member of the enumeration.

    Raises:
        NkiValidationError: for anything else, the plain integers of older NKI included.
    """
    if not isinstance(oob_mode, OobMode):
        raise NkiValidationError(f"oob_mode must be a member of nki.isa.oob_mode, got {oob_mode!r}")


def check_dge_mode(core: Core, dge_mode: DgeMode) -> None:
    """Require a member of the enumeration that the generation has.

    Raises:
        NkiValidationError: for anything else, the plain integers of older NKI included.
    """
    if not isinstance(dge_mode, DgeMode):
        raise NkiValidationError(f"dge_mode must be a member of nki.isa.dge_mode, got {dge_mode!r}")
    if dge_mode is DgeMode.hwdge and core.generation.version is nc_version.gen2:
        raise NkiValidationError("dge_mode=hwdge needs trn2 or newer")


def check_priority(core: Core, priority: int | None) -> None:
    """Require a priority that the generation has, or none.

    Raises:
        NkiValidationError: naming the range and the generation.
    """
    if priority is None:
        return
    is_known = isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= _LOWEST_PRIORITY
    if core.generation.version is not nc_version.gen4 or not is_known:
        raise NkiValidationError(
            f"priority is 0 to {_LOWEST_PRIORITY} and needs trn3, got {priority!r} on {core.generation.name}"
        )


def has_vector_offset(view: NkiTensor) -> bool:
    """Whether every row of a view has its own index, which makes the transfer a gather or a scatter."""
    return view.indirect_access is not None and view.indirect_access.kind == "vector"


def check_vector_offset(core: Core, dge_mode: DgeMode) -> None:
    """Only software generates the descriptors of a gather or scatter, from trn2 on.

    Raises:
        NkiValidationError: naming the generation or the mode.
    """
    if core.generation.version is nc_version.gen2:
        raise NkiValidationError("a vector offset needs trn2 or newer")
    if dge_mode not in (DgeMode.unknown, DgeMode.swdge):
        raise NkiValidationError(f"a vector offset needs dge_mode unknown or swdge, got {dge_mode.name}")
