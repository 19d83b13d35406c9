"""Where the cores of a launch wait for each other."""

from __future__ import annotations

from nkilib.nki import nisa, nl


def meet(tensor_hbm: nl.NkiTensor) -> None:
    """Wait until both cores are done with a tensor."""
    if nl.num_programs() > 1:
        nisa.core_barrier(tensor_hbm, tuple(range(nl.num_programs())))
