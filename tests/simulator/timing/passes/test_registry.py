# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every pass has a switch, and the older readings switch all of them off."""

from __future__ import annotations

from dataclasses import fields

from nkilib.simulator import AS_ISSUED, ModelParameters
from nkilib.simulator.hardware.current import current_generation
from nkilib.simulator.timing.passes.registry import PASSES, window_for


def test_every_pass_has_a_switch_and_says_why() -> None:
    names = {field.name for field in fields(ModelParameters)}
    for entry in PASSES:
        assert entry.switch in names and entry.does and entry.evidence
        assert getattr(ModelParameters(), entry.switch) and not getattr(AS_ISSUED, entry.switch)


def test_without_a_pass_nothing_is_deferred() -> None:
    window = window_for(current_generation(), AS_ISSUED)
    batch: list[object] = [object()]
    assert window.take(batch) is batch  # type: ignore[arg-type, comparison-overlap]
