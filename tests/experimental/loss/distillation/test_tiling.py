# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How rows are cut up: every plan fits the chip, and is what is documented; the modelled traffic and time of a launch,
compared with the needs of its work.
"""

from __future__ import annotations

import math

import pytest

from nkilib.experimental.loss.distillation.host import profile_distillation_launch
from nkilib.experimental.loss.distillation.tiling import (
    Form,
    choose_distillation_tiling,
    gradient_group,
    mixture_plan,
    most_columns,
)

BYTES = {"bfloat16": 4, "float32": 8}
VOCABULARIES = (1, 129, 1409, 32128, 40832, 40833, 128256)


@pytest.mark.parametrize("type_name", BYTES)
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_the_defaults_fit(type_name: str, beta: float) -> None:
    for vocab_size in (1409, 19712, 40833):  # around sizes at which plans change
        for direction in ("forward", "backward"):
            profiled = profile_distillation_launch(256, vocab_size, type_name, direction, beta=beta)
            assert 0 < profiled.sbuf_peak_bytes_per_partition <= 212_984


def test_small_tiles_of_all_batches_fit_beside_rows_that_are_kept() -> None:
    profiled = profile_distillation_launch(256, 40832, "bfloat16", "forward", beta=0.5)
    of_batches = 6 * 4 * 256 + 3 * 1024  # totals of 256 batches, and slots of their rows
    assert profiled.sbuf_peak_bytes_per_partition + of_batches <= 212_984


@pytest.mark.parametrize("type_name", BYTES)
def test_a_column_of_a_divergence_takes_what_its_chunks_are_chosen_for(type_name: str) -> None:
    """But for less than a byte: some small tiles shrink with the number of chunks."""
    peaks = [
        profile_distillation_launch(256, 20480, type_name, "forward", chunk_size=size).sbuf_peak_bytes_per_partition
        for size in (1024, 2560)
    ]
    of_column = (peaks[1] - peaks[0]) / (2560 - 1024)
    largest = most_columns(10**6, BYTES[type_name], Form.DIVERGENCE)
    assert largest == min(4096, 190_000 // math.ceil(of_column)) and 0.0 <= math.ceil(of_column) - of_column < 0.2


@pytest.mark.parametrize("is_mixed", [False, True])
@pytest.mark.parametrize("is_backward", [False, True])
def test_chunks_are_nearly_even(is_mixed: bool, is_backward: bool) -> None:
    for vocab_size in VOCABULARIES:
        for bytes_of_pair in BYTES.values():
            chunk_size = choose_distillation_tiling(vocab_size, bytes_of_pair, is_mixed, is_backward).chunk_size
            chunks = -(-vocab_size // chunk_size)
            assert chunk_size <= vocab_size
            assert chunks * chunk_size - vocab_size <= chunks * 128


@pytest.mark.parametrize(("bytes_of_pair", "most"), [(4, 40832), (8, 19712)])
def test_which_rows_are_kept(bytes_of_pair: int, most: int) -> None:
    for vocab_size, expected in ((most, True), (most + 1, False)):
        chunk_size = choose_distillation_tiling(vocab_size, bytes_of_pair, is_mixed=True).chunk_size
        assert mixture_plan(vocab_size, chunk_size, bytes_of_pair).keeps_rows is expected


def test_groups_shrink_with_chunks() -> None:
    assert [gradient_group(columns, 4) for columns in (512, 2048, 3584)] == [8, 7, 2]


POSITIONS = 256


def _logit_bytes(vocab_size: int, size: int = 2) -> int:
    return 2 * POSITIONS * vocab_size * size


@pytest.mark.parametrize(
    ("beta", "vocab_size", "times"), [(0.0, 41000, 1), (1.0, 41000, 1), (0.5, 40832, 1), (0.5, 40960, 2)]
)
def test_the_forward_reads_logits_once_but_for_the_mixture_of_long_rows(
    beta: float, vocab_size: int, times: int
) -> None:
    profiled = profile_distillation_launch(POSITIONS, vocab_size, "bfloat16", "forward", beta=beta)
    assert profiled.hbm_read_bytes == times * _logit_bytes(vocab_size)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_backward_reads_once_and_writes_once(beta: float) -> None:
    profiled = profile_distillation_launch(POSITIONS, 4000, "bfloat16", "backward", beta=beta)
    vectors = 5 if beta == 0.0 else 6  # KL(teacher || student) needs no moment
    assert profiled.hbm_read_bytes == _logit_bytes(4000) + vectors * 4 * POSITIONS
    assert profiled.hbm_written_bytes == _logit_bytes(4000) // 2


# The figures of docs/explanation/distillation_figures.md.
@pytest.mark.parametrize(
    ("beta", "direction", "most"),
    [(0.0, "forward", 1.13), (0.0, "backward", 1.1), (0.5, "forward", 1.33), (0.5, "backward", 1.08)],
)
def test_times_are_near_the_bound(beta: float, direction: str, most: float) -> None:
    profiled = profile_distillation_launch(4096, 32128, "bfloat16", direction, beta=beta)
    assert 1.0 <= profiled.time_us / profiled.bound_us <= most


@pytest.mark.parametrize(("beta", "functions"), [(0.0, 2), (1.0, 2), (0.5, 5)])
def test_the_bound_of_the_forward_is_what_its_functions_take(beta: float, functions: int) -> None:
    profiled = profile_distillation_launch(256, 32128, "bfloat16", "forward", beta=beta)
    assert profiled.bounds_us["scalar"] == pytest.approx(functions * 256 * 32128 / (2 * 128 * 1200), rel=0.01)
