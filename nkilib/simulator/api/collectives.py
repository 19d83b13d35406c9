"""Stands for the module ``nki.collectives``, which the simulator does not implement."""

from __future__ import annotations

from .pending import pending

ReplicaGroup = pending("nki.collectives.ReplicaGroup")
all_gather = pending("nki.collectives.all_gather")
all_gather_v = pending("nki.collectives.all_gather_v")
all_reduce = pending("nki.collectives.all_reduce")
all_to_all = pending("nki.collectives.all_to_all")
all_to_all_v = pending("nki.collectives.all_to_all_v")
collective_permute = pending("nki.collectives.collective_permute")
collective_permute_implicit = pending("nki.collectives.collective_permute_implicit")
collective_permute_implicit_current_processing_rank_id = pending(
    "nki.collectives.collective_permute_implicit_current_processing_rank_id"
)
collective_permute_implicit_reduce = pending("nki.collectives.collective_permute_implicit_reduce")
rank_id = pending("nki.collectives.rank_id")
reduce_scatter = pending("nki.collectives.reduce_scatter")

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
]
