# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How rows are cut up: every plan fits the chip, and is what is documented."""

from __future__ import annotations

import math

import pytest

from nkilib.experimental.loss.distillation.host.profiling import profile_distillation_launch
from nkilib.experimental.loss.distillation.host.tiling import (
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
