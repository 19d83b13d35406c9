# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where the descriptors of transfers are the compiler's choice, a profile says so with both times, and else nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import AS_ISSUED, ModelParameters, Profile, profile, spec, using
from nkilib.simulator.profiling.why.finding import Finding
from tests.simulator.profiling.why import faulty

ALWAYS = ModelParameters(software_descriptors="always")
ROWS, COLUMNS = 1024, faulty.WIDE


def _profile(kernel: Any, target: str = "trn2", parameters: ModelParameters | None = None, cores: int = 1) -> Profile:
    with using(target=target):
        return profile(nki.jit(kernel)[cores], spec((ROWS, COLUMNS), nl.float32), parameters=parameters)


def _said(result: Profile) -> list[Finding]:
    return [finding for finding in result.why if finding.about == "descriptors"]


def _load_line(function: str) -> str:
    lines = Path(faulty.__file__).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"def {function}("))
    return f"faulty.py:{next(number + 1 for number in range(first, len(lines)) if 'dma_copy' in lines[number])}"


@pytest.mark.parametrize(
    ("target", "kind", "pauses"),
    [("trn1", "descriptors that the host has written", (0.3, 1.4)), ("trn2", "hardware descriptors", (0.3, 0.6))],
)
def test_both_times_are_those_of_the_two_choices(target: str, kind: str, pauses: tuple[float, float]) -> None:
    few, many = _profile(faulty.many_triggers, target), _profile(faulty.many_triggers, target, ALWAYS)
    assert many.time_us > 1.3 * few.time_us
    software = "software descriptors, which GpSimd writes"
    in_words = [
        f"{what} (a trigger every {pause} us in each direction)"
        for what, pause in zip((kind, software), pauses, strict=True)
    ]
    for profiled, other, words, share in (
        (few, many, in_words, f"{many.time_us / few.time_us - 1:.0%} more"),
        (many, few, in_words[::-1], f"{1 - few.time_us / many.time_us:.0%} less"),
    ):
        (finding,) = _said(profiled)
        assert f"of 64 transfers to it, most at {_load_line('many_triggers')} dma_copy (64 times)" in finding.text
        assert f"With {words[0]}, as modelled here, the launch takes {profiled.time_us:.1f} us" in finding.text
        expected = rf"with {re.escape(words[1])}, .* take about {other.time_us:.1f} us \({share}, an estimate\)"
        assert re.search(expected, finding.text), finding.text
        assert finding.time_us == pytest.approx(many.time_us - few.time_us)
        assert finding.saved_us == (finding.time_us if profiled is many else 0.0)
        assert finding.place == _load_line("many_triggers")


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("parameters", [None, ALWAYS], ids=["needed", "always"])
def test_faults_that_do_not_matter_are_not_reported(target: str, parameters: ModelParameters | None) -> None:
    """Transfers of 4 MiB: the engines move longer than any descriptors take."""
    profiled = _profile(faulty.sound, target, parameters)
    assert not _said(profiled)
    assert profiled.time_us == _profile(faulty.sound, target).time_us


def _with(**mode: Any) -> Any:
    def kernel(x: Any) -> None:
        for first in range(0, 4096, 64):
            nisa.dma_copy(nl.ndarray((128, 64), x.dtype), x[0:128, first : first + 64], **mode)

    return kernel


@pytest.mark.parametrize(
    "mode",
    [
        {"dge_mode": nisa.dge_mode.none},
        {"dge_mode": nisa.dge_mode.swdge},
        {"dge_mode": nisa.dge_mode.hwdge},
        {"dge_mode": nisa.dge_mode.hwdge, "engine": nisa.engine.sync},
    ],
    ids=["none", "swdge", "hwdge", "sync"],
)
def test_a_kernel_that_says_which_descriptors_it_wants_gets_these(mode: dict[str, Any]) -> None:
    result, always = _profile(_with(**mode)), _profile(_with(**mode), parameters=ALWAYS)
    assert not _said(result) and not _said(always)
    assert result.time_us == always.time_us
    assert _said(_profile(_with()))


def test_what_only_gpsimd_can_write_is_no_choice() -> None:
    """An address from a register is such a case on trn1; on trn2 the hardware may write its descriptors too."""

    def kernel(x: Any) -> None:
        at = nl.ndarray((1, 1), nl.int32)
        nisa.memset(at, 0)
        for first in range(0, 4096, 64):
            source = x.ap([[COLUMNS, 128], [1, 64]], offset=first, scalar_offset=at, indirect_dim=0)
            nisa.dma_copy(nl.ndarray((128, 64), x.dtype), source)

    assert not _said(_profile(kernel, "trn1")) and _said(_profile(kernel, "trn2"))


def test_transfers_of_both_cores_count() -> None:
    (finding,) = _said(_profile(faulty.many_triggers, cores=2))
    assert "of 128 transfers" in finding.text


def test_the_model_without_kinds_of_descriptors_has_no_choice() -> None:
    assert not _said(_profile(faulty.many_triggers, parameters=AS_ISSUED))
