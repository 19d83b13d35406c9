# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The replacement of the module ``nki.collectives``: operations among the ranks of :func:`nkilib.simulator.ranks`."""

from __future__ import annotations

from ..engines.collectives.fixed_size import all_gather, all_reduce, all_to_all, reduce_scatter
from ..engines.collectives.groups import ReplicaGroup, rank_id, rg_partition_op
from ..engines.collectives.permutes import (
    collective_permute,
    collective_permute_implicit,
    collective_permute_implicit_current_processing_rank_id,
    collective_permute_implicit_reduce,
)
from ..engines.collectives.variable_size import (
    all_gather_v,
    all_gather_v_prepare,
    all_gather_v_trigger,
    all_to_all_v,
    all_to_all_v_prepare,
    all_to_all_v_trigger,
)
from .stand_ins import pending

# No page of the documentation describes it.
reduce_scatter_v = pending("nki.collectives.reduce_scatter_v")

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_gather_v_prepare",
    "all_gather_v_trigger",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "all_to_all_v_prepare",
    "all_to_all_v_trigger",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
    "rg_partition_op",
]
