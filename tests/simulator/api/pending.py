"""Documented names of NKI 0.7 that the simulator does not have yet, or has as in 0.6 only.

``test_names.py`` fails where one of them has landed and still stands here, and where another one is missing.
"""

from __future__ import annotations

from typing import Final

PENDING: Final[frozenset[str]] = frozenset({
    # scalars and loops
    "nki.isa.NkiScalar",
    "nki.isa.scalar_load",
    "nki.isa.scalar_store",
    "nki.language.dynamic_range",
    "nki.language.int64",

    # grids and tensors
    "nki.language.NkiBlockGrid",
    "nki.language.NkiGrid",
    "nki.language.NkiTensor.__init__",
    "nki.language.NkiTensor.data",
    "nki.language.NkiTileGrid",
    "nki.language.alloc_blocks",
    "nki.language.alloc_tiles",
    "nki.language.blocks",
    "nki.language.empty_like",
    "nki.language.tiles",

    # compilation
    "nki.compiler.AddressRotation",
    "nki.compiler.CompileConfig",
    "nki.compiler.SpecializationConfig",
    "nki.jit",

    # collectives
    "nki.collectives.all_gather_v_prepare",
    "nki.collectives.all_gather_v_trigger",
    "nki.collectives.all_to_all_v_prepare",
    "nki.collectives.all_to_all_v_trigger",
})  # fmt: skip
