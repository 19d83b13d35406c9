# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice between the two forms of the forward: with the exact maximum of every row, or with a shift in its
place.
"""

from __future__ import annotations

from dataclasses import replace

from nkilib.core.plan_limits import limited_shift_columns
from nkilib.core.rows.checks import require
from nkilib.core.rows.recomputation import BATCHES_MAX, ROWS_MAX
from nkilib.experimental.loss.cross_entropy.options import Launch, Options
from nkilib.nki import nl

# Where a shift pays, fitted to profiles of launches on trn2 (modelled, not measured). The additional work of a shift
# takes the time that it saves over this many columns of batches; in shorter rows, the fixed cost of a batch shows.
_COLUMNS_OF_BATCHES = 130_000
_COLUMNS_OF_ROW = 4_000
# With an entropy, recomputed rows are the more expensive the shorter their chunks are: with fewer columns
# a launch of nothing but such rows takes more than 2.3 times the time of the form with the exact maximum.
_CHUNK_BESIDE_ENTROPY, _COLUMNS_BESIDE_ENTROPY = 8_192, 50_000


def with_form(launch: Launch, options: Options, exact_maximum: bool | None) -> Options:
    """Return the options with the form of the forward that ``exact_maximum`` requests.

    True means the exact maximum of every row, False a shift in its place, None the one that is modelled to be
    faster.

    Raises:
        AssertionError: if ``exact_maximum`` is none of the three values, or requests a form that the launch or
            its options exclude.
    """
    function = launch.function
    require(
        exact_maximum in (True, False, None),
        f"{function}: exact_maximum must be True, False or None, got {exact_maximum}",
    )
    if exact_maximum:
        return options
    obstacle = _obstacle(launch, options)
    if exact_maximum is None:
        return options if obstacle or not _pays(launch, options) else replace(options, with_shift=True)
    require(not obstacle, f"{function}: exact_maximum must be True or None {obstacle}, got False")
    return replace(options, with_shift=True)


def _obstacle(launch: Launch, options: Options) -> str:
    """Return the reason why a launch needs the exact maximum, as a part of an error message; empty if there is none."""
    cores, wanted = nl.num_programs(), options.wanted
    shifted = replace(options, with_shift=True).forward_plan
    for is_there, obstacle in (
        (options.has_probabilities, "for class probabilities"),
        (options.spread != 0.0, "with label_smoothing, which sums distances from it"),
        (options.softcap is not None, "with logit_softcap"),
        (wanted.argmax, "with with_argmax"),
        (wanted.distance_sum, "with with_distance_sum"),
        (launch.vocab_size == 1, "for a vocabulary of one, of which it is the shift"),
        (launch.num_positions < cores, f"for fewer than {cores} positions, one a core"),
        (launch.num_positions > ROWS_MAX, f"for more than {ROWS_MAX} positions, which are counted in float32"),
        (launch.chunk_size > shifted.largest_chunk(launch.dtype), "for chunks that leave no room for smaller tiles"),
    ):
        if is_there:
            return obstacle
    most = max(len(launch.batches_of(core)) for core in range(cores))
    return f"for more than {BATCHES_MAX} batches a core, got {most}" if most > BATCHES_MAX else ""


def _pays(launch: Launch, options: Options) -> bool:
    is_short = launch.dtype == launch.logits_hbm.dtype and launch.dtype in (nl.bfloat16, nl.float16)
    columns = launch.vocab_size - launch.chunk_size
    is_long = launch.chunk_size >= limited_shift_columns(_CHUNK_BESIDE_ENTROPY)
    is_long = is_long and columns >= limited_shift_columns(_COLUMNS_BESIDE_ENTROPY)
    if options.wanted.entropy and not is_long:
        return False
    return is_short and shift_pays(len(launch.batches_of(0)), launch.vocab_size, launch.chunk_size)


def shift_pays(batches: int, vocab_size: int, chunk_size: int) -> bool:
    """Return whether, on one core, a pass for the maximum of all rows takes longer than all additional work of a
    shift.

    This holds for 16-bit types: loads of float32 take longer than either pass.

    Args:
        batches: the number of batches of the core.
        vocab_size, chunk_size: V, and the columns of a chunk.
    """
    columns = vocab_size - chunk_size // 2
    least, least_of_batches = limited_shift_columns(_COLUMNS_OF_ROW), limited_shift_columns(_COLUMNS_OF_BATCHES)
    return columns >= least and batches * columns >= least_of_batches
