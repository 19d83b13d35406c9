# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The model in which every instruction stands where the kernel issues it gives the times that were frozen."""

from __future__ import annotations

import pytest

from nkilib.simulator import AS_ISSUED

from .frozen import Launch, frozen_launches, launches


def test_every_launch_is_frozen() -> None:
    assert [launch for launch, _ in frozen_launches()] == list(launches())


@pytest.mark.parametrize(
    ("launch", "frozen_us"), [pytest.param(launch, time, id=str(launch)) for launch, time in frozen_launches()]
)
def test_a_launch_takes_what_it_took_to_the_nanosecond(launch: Launch, frozen_us: float) -> None:
    assert round(1000 * launch.time_us(AS_ISSUED)) == round(1000 * frozen_us) > 0
