# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The modelled traffic and time of a launch, compared with the needs of its work."""

from __future__ import annotations

import pytest

from nkilib.experimental.loss.distillation.host.profiling import profile_distillation_launch

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
    assert profiled.hbm_read_bytes == _logit_bytes(4000) + 6 * 4 * POSITIONS
    assert profiled.hbm_written_bytes == _logit_bytes(4000) // 2


# The figures of docs/explanation/distillation.md.
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
