# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nki.compiler``: the configurations of a kernel, whose values are checked though nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from nkilib.nki import nki
from tests.simulator.frame import refused

AddressRotation = nki.compiler.AddressRotation
CompileConfig = nki.compiler.CompileConfig
SpecializationConfig = nki.compiler.SpecializationConfig


def test_the_defaults() -> None:
    config = CompileConfig()
    assert config.address_rotation is AddressRotation.AUTO
    assert config.nki_alloc_fallback and not config.prefetch_auto  # the two that are documented
    assert not (config.non_ssa_legalization or config.dead_code_elim or config.barrier_check)
    assert not SpecializationConfig().allow_nested_config_override


def test_a_configuration_is_a_value() -> None:
    assert CompileConfig(barrier_check=True) == CompileConfig(barrier_check=True) != CompileConfig()
    with pytest.raises(FrozenInstanceError):
        CompileConfig().barrier_check = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CompileConfig(barrier_check=1), "CompileConfig.barrier_check must be a bool, got 1"),
        (
            lambda: CompileConfig(address_rotation="auto"),
            "CompileConfig.address_rotation must be a member of nki.compiler.AddressRotation, got 'auto'",
        ),
        (
            lambda: SpecializationConfig(allow_nested_config_override=None),
            "SpecializationConfig.allow_nested_config_override must be a bool, got None",
        ),
    ],
)
def test_values_of_another_type(make: Callable[[], Any], message: str) -> None:
    assert refused(TypeError, make) == message


def test_fields_that_do_not_exist() -> None:
    assert "'optimize'" in refused(TypeError, lambda: CompileConfig(optimize=True))


def test_a_prefetch_ring_is_automatic_or_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CompileConfig(prefetch_auto=True).prefetch_auto
    monkeypatch.setenv("NKI_PREFETCH_RING_SIZE", "4")
    assert not CompileConfig().prefetch_auto
    message = refused(ValueError, lambda: CompileConfig(prefetch_auto=True))
    assert message.startswith("CompileConfig(prefetch_auto=True) and the environment variable NKI_PREFETCH_RING_SIZE")
