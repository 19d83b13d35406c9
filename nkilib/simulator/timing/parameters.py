# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Assumptions of the performance model, each with a name, a default and a note.

:class:`ModelParameters` holds the assumptions; :data:`AS_ISSUED` are the assumptions of the first version of the model,
in which every instruction runs where the kernel issues it. ``NS_PER_US`` converts units, and times that differ by less
than ``SAME_NS`` count as equal.
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
    """Assumptions of the performance model where the documentation is silent or has two readings.

    N is the number of elements in a partition.

    Attributes:
        halves_bf16_max: whether ``tensor_reduce`` of 16-bit tiles by add or max takes N/2 cycles, as older revisions of
            the API's text say, instead of N; the trn2 guide lists no such mode.
        fp32_exponential_cycles: cycles per element of ``exponential`` in float32 (trn3); bfloat16 takes 1/4.
        select_reduce_cycles: cycles per element of ``select_reduce``, for which nothing is published.
        other_cycles: cycles per element of an instruction for which nothing is published.
        indirect_base_us: the time from the trigger of a DMA with a vector offset to its first row.
        indirect_row_ns: the least time that a DMA engine takes for a row of a DMA with a vector offset.
        indirect_gpsimd_us: the time that GpSimd is busy with the descriptors of a DMA with a vector offset.
        barrier_us: the time of a ``core_barrier``, or of the synchronisation of a ``sendrecv``, after both cores have
            arrived.
        register_us: the time of a move or a store of a register or a scalar, for which nothing is published. Arithmetic
            on scalars is no separate instruction and takes no time.
        register_load_us: the time from the start of a load of a register or a scalar from SBUF or HBM until a dependent
            instruction can start. Nothing is published; 1.4 is that time for the smallest transfer.
        waits_for_registers: whether a load or a store of a register waits for its tensor, and whether loops and
            addresses wait for their registers.
        loops_drain: whether all engines and queues wait at the start and the end of a device loop until all issued
            instructions are done.
        loop_entry_us: the time that starting and ending a loop takes, besides waiting; the model adds it at the start.
        iterations_drain: whether all engines and queues synchronise between two iterations of a device loop.
        loop_iteration_us: the time between two iterations of a device loop, besides waiting.
        body_reuses_tiles: whether a tile that the body of a loop makes has the same memory in each iteration, because
            the device has one copy of the body's instructions.
        trigger_us: the time between two triggers of a DMA queue; None: the value of the generation (0.6). The published
            throughput of small rows requires 0.85: see docs/reference/model_constants.md.
        issue_cycles: the cycles between two instructions of a compute engine; the Tensor engine needs none. None: the
            value of the generation (100; 40 on trn1).
        queues_by_direction: whether loads have one queue and stores another, so that a store that waits for its data
            does not delay a load; False: one queue triggers all transfers in program order. The compiler decides.
            Gathers and scatters always use GpSimd's queue; an engine that ``dma_copy(engine=)`` names has its own.
        descriptor_units: the number of hardware units that write descriptors for a queue of transfers whose engine the
            kernel leaves open. Each unit takes ``trigger_us`` for a transfer (``nki-dge.rst``: two instances a core,
            about 600 ns an instruction), so that two units trigger a transfer every 300 ns.
        software_descriptors: the transfers whose descriptors GpSimd writes. ``"needed"``: gathers, scatters, transfers
            with ``dge_mode.swdge`` and, where no hardware writes descriptors (trn1), transfers with addresses that are
            read at run time; the descriptors of all others come from the hardware, or on trn1 from the host.
            ``"always"``: also transfers for which the kernel leaves the choice to the compiler; on trn2 one published
            kernel had software descriptors for them, and another hardware descriptors. ``"never"``: gathers, scatters
            and ``dge_mode.swdge`` only, and these descriptors take the same time as those of the hardware.
        software_us: the time between two transfers of a queue whose descriptors GpSimd writes; None: the value of the
            generation (1.36 on trn1, measured; 0.6 on the others, for which nothing is published).
        queue_us: the time between two transfers of a queue that the kernel names; None: ``trigger_us``. The published
            rates of small rows were measured with one queue.
        functions_without_table: activation functions that every table of the Scalar engine has.
        shared_tables: groups of activation functions that share one table. The groups are not published: by default
            each function has its own table, so that a change of function always costs the load of a table.
        least_transfer_ns: the least time that a transfer occupies each engine that it uses, however few its rows are. A
            transfer of 8 rows of 256 bytes takes this long in ``nki-dma-overview.rst``. Each transfer in a sum of
            vectors, one element a step, is measured at 486 ns.
        small_store_factor: the time of an engine for a row of at most 512 bytes that it writes to HBM, divided by its
            time for such a row that it reads. Nothing is published; the stores of copies, sums and transposes in tiles
            of such rows are measured at a factor of 2 (docs/evidence/measurements.md).
        follows_published_modes: whether Vector's fast modes have all conditions of the published texts.
            ``tensor_tensor`` takes N cycles if one *input* is in PSUM and the other in SBUF, or for 16-bit floats if
            the inputs are contiguous, in SBUF, and are added, subtracted or multiplied. ``tensor_copy`` and
            ``tensor_scalar`` with an operand in PSUM are fast only if it is the only one in PSUM and the operands are
            contiguous. False: any operand in PSUM and any operator are fast.
        streams_scalar_tensor_tensor: whether ``scalar_tensor_tensor`` takes a cycle per element from trn2 on, as
            published times of kernels that use it say. False: two cycles, as on trn1.
        pads_dma_transpose: whether a transpose by DMA moves blocks of 128 partitions x 16 elements, which the guide
            names as the condition of its rate. False: any shape has that rate.
        reuses_psum_banks: whether a new tile in PSUM takes the place of the tiles used longest ago, and waits for them.
            False: there is always room.
        drops_dead_stores: whether the device skips a ``memset`` that is overwritten before anything reads it. This
            field, ``hoists_invariants`` and ``keeps_broadcasts_in_psum`` switch passes over the instructions on; their
            modules in :mod:`.passes` give the evidence.
        hoists_invariants: whether the device runs an instruction once if it computes the same from unchanged inputs in
            each iteration.
        chooses_engines: whether ``tensor_copy`` and ``memset``, where the kernel leaves the engine open, run on the
            engine that finishes them first. False: on Vector.
        keeps_broadcasts_in_psum: whether the result of a broadcast by a function of ``nki.language`` stays in PSUM
            instead of being copied to SBUF, if its readers can read PSUM.

    Raises:
        ValueError: if ``software_descriptors`` is none of its choices.
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
        if self.software_descriptors not in _CHOICES:
            raise ValueError(
                f"ModelParameters: software_descriptors must be one of {', '.join(_CHOICES)}, "
                f"got {self.software_descriptors!r}"
            )

    def issue_cycles_of(self, timing: Timing) -> float:
        """Return the cycles between two instructions of a compute engine other than Tensor.

        ``timing`` is the timing of the generation.
        """
        return timing.issue_cycles if self.issue_cycles is None else self.issue_cycles

    def table_of(self, function: str) -> str:
        """Return the name of the activation table that ``function`` needs; empty if every table has the function."""
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
