# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Comparisons of stated, derived and observed errors of losses, with messages that say what to correct."""

from __future__ import annotations

from collections.abc import Iterable


def assert_near(name: str, part: str, stated: float, of_reference: float, least: float) -> None:
    """Assert that the reference derives at most the stated error, and at least ``least`` times that."""
    assert least * stated <= of_reference <= stated + 1e-6, (
        f"{name}: {part} of its TermError must be 1 to {1.0 / least:g} times what the reference derives: stated "
        f"{stated:g} u, derived {of_reference:.4g} u of the largest term on hard inputs; correct the TermError, or "
        f"what the reference passes to Derived.of_units"
    )


def assert_same_functions(name: str, stated: Iterable[str], of_reference: Iterable[str]) -> None:
    """The reference derives an error of each function that is stated, and of no other."""
    assert set(stated) == set(of_reference), (
        f"{name}: its TermError must have the functions of its reference: stated {sorted(stated)}, derived "
        f"{sorted(of_reference)}; correct the TermError, or what the reference passes to Derived.of_units"
    )


def assert_kept(name: str, observed_units: float, allowed_units: float) -> None:
    """The kernel's error is at most what its TermError allows."""
    assert observed_units <= allowed_units, (
        f"{name}: the kernel must keep the error that its TermError states: stated {allowed_units:.4g} u of the "
        f"largest term with the functions of the simulator, observed {observed_units:.4g} u; derive the error from "
        f"the instructions again, or correct the kernel"
    )
