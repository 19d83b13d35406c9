# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Assumptions of the model of time, each with a name, a default and a note.

:class:`ModelParameters` holds them; :data:`AS_ISSUED` are the assumptions of the first version of the model, in which
every instruction runs where the kernel issues it. ``NS_PER_US`` converts units, and times that differ by less than
``SAME_NS`` count as equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ..hardware.generations import Timing

# Parameters and profiles are in microseconds, the model counts nanoseconds.
NS_PER_US = 1000.0
# Times that differ by less are equal: they are sums in another order.
SAME_NS = 1e-4

# The transfers whose descriptors GpSimd writes.
SoftwareDescriptors = Literal["never", "needed", "always"]
_CHOICES: Final = get_args(SoftwareDescriptors)


@dataclass(frozen=True)
class ModelParameters:
    """Assumptions where the documentation is silent or has two readings.

    Attributes:
        halves_bf16_max: whether ``tensor_reduce`` of 16-bit tiles by add or max takes N/2 cycles, as older revisions of
            the API's text say, instead of N; the trn2 guide lists no such mode.
        fp32_exponential_cycles: cycles per element of ``exponential`` in float32 (trn3); bfloat16 takes 1/4.
        select_reduce_cycles: cycles per element of ``select_reduce``, for which nothing is published.
        other_cycles: cycles per element of an instruction for which nothing is published.
        indirect_base_us: the time from the trigger of a DMA with a vector offset to its first row.
        indirect_row_ns: the least time that an engine takes for a row of such a DMA.
        indirect_gpsimd_us: the time that GpSimd is busy with the descriptors of such a DMA.
        barrier_us: the time of a ``core_barrier``, or of the synchronisation of a ``sendrecv``, from the moment when
            both cores have come.
        register_us: the time of a move or a store of a register or a scalar. Nothing is published; arithmetic on
            scalars, which is no separate instruction, takes no time.
        register_load_us: the time of a load of a register or a scalar from SBUF or HBM, until something can depend on
            it. Nothing is published; 1.4 is the time of the smallest transfer until the start of its consumer.
        waits_for_registers: whether a load or a store of a register waits for its tensor, and loops and addresses for
            their registers.
        loops_drain: whether all engines and queues synchronise at the start and the end of a device loop, when
            everything that was issued is done.
        loop_entry_us: the time that a loop takes to start and to end, beyond what it waits for.
        iterations_drain: whether all engines and queues synchronise between two iterations of a device loop.
        loop_iteration_us: the time between two iterations of a device loop, beyond what they wait for.
        body_reuses_tiles: whether a tile that the body of a loop makes is the same memory in each iteration, because
            the device has one copy of the body's instructions.
        trigger_us: the time between two triggers of a DMA queue; None for that of the generation (0.6). The published
            throughput of small rows asks for 0.85: see docs/reference/model_constants.md.
        issue_cycles: the cycles between two instructions of a compute engine other than the Tensor engine, which has
            none; None for those of the generation (100; 40 on trn1).
        queues_by_direction: whether loads and stores have a queue each, so that a store that waits for its data does
            not delay a load; else one queue triggers all transfers in program order. The compiler decides. A gather or
            a scatter has a separate queue (GpSimd) in any case, and so has each engine that ``dma_copy(engine=)``
            names.
        descriptor_units: the number of hardware units that write descriptors for the loads, and for the stores, whose
            engine the kernel leaves open; each takes ``trigger_us`` for a transfer (``nki-dge.rst``: two instances a
            core, about 600 ns an instruction), so that two units trigger a transfer every 300 ns.
        software_descriptors: the transfers whose descriptors GpSimd writes. ``"needed"``: those that need it, which are
            gathers, scatters, transfers with ``dge_mode.swdge`` and, where no hardware writes descriptors (trn1),
            addresses that are read at run time; all others have descriptors from the hardware, or on trn1 those that
            the host has written. ``"always"``: also those whose descriptors the kernel leaves to the compiler, which on
            trn2 were software descriptors for one published kernel and hardware descriptors for another. ``"never"``:
            all descriptors take the same time.
        software_us: the time between two transfers of a queue whose descriptors GpSimd writes; None for that of the
            generation (1.36 on trn1, measured; 0.6 on the others, for which nothing is published).
        queue_us: the time between two transfers of a queue that the kernel names; None: ``trigger_us``. The published
            rates of small rows are those of one queue.
        functions_without_table: activation functions that every table of the Scalar engine has.
        shared_tables: groups of activation functions that one table holds. The groups are not published: by default
            each function has a table of its own, so that a change of function always costs a load.
        least_transfer_ns: the least time that a transfer occupies each engine that it uses, however few its rows are. A
            transfer of 8 rows of 256 bytes takes this long in ``nki-dma-overview.rst``, and a sum of vectors, one
            element a step, is measured at 486 ns for each of its transfers.
        small_store_factor: the factor by which an engine takes longer for a row of at most 512 bytes that it writes to
            HBM. Nothing is published; copies, sums and transposes in tiles of such rows are measured at twice the time
            of a row for their stores (docs/evidence/measurements.md). 1: the time of a row of a load.
        follows_published_modes: whether Vector's modes have all conditions of the published texts: ``tensor_tensor``
            takes N cycles if one *input* is in PSUM and the other in SBUF, or for 16-bit floats if the inputs are in
            SBUF and contiguous and are added, subtracted or multiplied; ``tensor_copy`` and ``tensor_scalar`` are fast
            for one side in PSUM only, and only there contiguous. False: any operand in PSUM will do, and any operator.
        streams_scalar_tensor_tensor: whether ``scalar_tensor_tensor`` takes a cycle per element from trn2 on, as
            published times of kernels made of it say. False: two cycles, as on trn1.
        pads_dma_transpose: whether a transpose by DMA moves blocks of 128 partitions x 16 elements, which the guide
            names as the condition of its rate. False: any shape has that rate.
        reuses_psum_banks: whether a new tile in PSUM waits for the tiles whose place it takes, those used longest ago.
            False: there is always room.
        drops_dead_stores: whether a ``memset`` that is overwritten before anything reads it is not run. This switch and
            the following ones are passes over the instructions, each with its evidence: see :mod:`.passes`.
        hoists_invariants: whether a line that computes the same in each iteration, from unchanged inputs, is run once.
        chooses_engines: whether ``tensor_copy`` and ``memset`` run on the engine that is done first where the kernel
            leaves it open. False: on Vector.
        keeps_broadcasts_in_psum: whether tensors that functions of ``nki.language`` broadcast to all partitions are
            read from PSUM.
    """

    halves_bf16_max: bool = False
    fp32_exponential_cycles: float = 0.5
    select_reduce_cycles: float = 2.0
    other_cycles: float = 1.0
    indirect_base_us: float = 2.0
    indirect_row_ns: float = 60.0
    indirect_gpsimd_us: float = 1.0
    barrier_us: float = 2.0
    register_us: float = 0.0
    register_load_us: float = 1.4
    waits_for_registers: bool = True
    loops_drain: bool = True
    loop_entry_us: float = 25.0
    iterations_drain: bool = True
    loop_iteration_us: float = 0.0
    body_reuses_tiles: bool = True
    trigger_us: float | None = None
    issue_cycles: float | None = None
    queues_by_direction: bool = True
    descriptor_units: int = 2
    software_descriptors: SoftwareDescriptors = "needed"
    software_us: float | None = None
    queue_us: float | None = 0.85
    functions_without_table: frozenset[str] = frozenset({"copy", "square"})
    shared_tables: tuple[frozenset[str], ...] = ()
    least_transfer_ns: float = 464.0
    small_store_factor: float = 2.0
    follows_published_modes: bool = True
    streams_scalar_tensor_tensor: bool = True
    pads_dma_transpose: bool = True
    reuses_psum_banks: bool = True
    drops_dead_stores: bool = True
    hoists_invariants: bool = True
    keeps_broadcasts_in_psum: bool = True
    chooses_engines: bool = True

    def __post_init__(self) -> None:
        """Check ``software_descriptors``.

        Raises:
            ValueError: if ``software_descriptors`` is none of its choices.
        """
        if self.software_descriptors not in _CHOICES:
            raise ValueError(
                f"ModelParameters: software_descriptors must be one of {', '.join(_CHOICES)}, "
                f"got {self.software_descriptors!r}"
            )

    def issue_cycles_of(self, timing: Timing) -> float:
        """Return the cycles between two instructions of a compute engine other than Tensor, on a generation with this
        ``timing``.
        """
        return timing.issue_cycles if self.issue_cycles is None else self.issue_cycles

    def table_of(self, function: str) -> str:
        """Return the name of the activation table that an activation function needs; empty if every table has it."""
        if function in self.functions_without_table:
            return ""
        return next(("+".join(sorted(group)) for group in self.shared_tables if function in group), function)


# The readings of the first version of the model, in which every instruction runs where the kernel issues it and takes
# its own time. Older figures of this library stay comparable under it; its times are frozen in the tests.
AS_ISSUED = ModelParameters(
    descriptor_units=1,
    software_descriptors="never",
    queue_us=None,
    issue_cycles=100.0,
    functions_without_table=frozenset({"copy"}),
    least_transfer_ns=0.0,
    small_store_factor=1.0,
    follows_published_modes=False,
    streams_scalar_tensor_tensor=False,
    pads_dma_transpose=False,
    reuses_psum_banks=False,
    drops_dead_stores=False,
    hoists_invariants=False,
    keeps_broadcasts_in_psum=False,
    chooses_engines=False,
    register_load_us=0.0,
    waits_for_registers=False,
    loops_drain=False,
    loop_entry_us=0.0,
    iterations_drain=False,
    loop_iteration_us=0.0,
    body_reuses_tiles=False,
)
