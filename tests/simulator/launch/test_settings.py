# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Arguments of ``nki.jit`` besides a function: configurations, and kernels that call kernels; a target; a grid."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import NkiValidationError
from tests.simulator.frame import counted, refused, without_line

CompileConfig = nki.compiler.CompileConfig
SpecializationConfig = nki.compiler.SpecializationConfig

X = counted(4, 8)


def add_one(x: Any) -> Any:
    """Make a new HBM tensor with the elements of ``x``, and 1 more each, in a kernel."""
    tile = nl.load(x)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.tensor_scalar(tile, tile, op0=nl.add, operand0=1.0)
    nl.store(result, tile)
    return result


def calling(callee: Any, **settings: Any) -> Any:
    """A kernel with these settings that calls another one twice."""

    def caller(x: Any) -> Any:
        return callee(callee(x))

    return nki.jit(caller, **settings)


def test_a_configuration_changes_no_result() -> None:
    config = CompileConfig(non_ssa_legalization=True, address_rotation=nki.compiler.AddressRotation.DISABLE)
    for kernel in nki.jit(add_one, compile_config=config), nki.jit(compile_config=config)(add_one):
        assert np.array_equal(kernel(X), X + 1)
        assert kernel.settings.compile_config is config
        assert kernel[2].settings is kernel.with_schedule([]).settings is kernel.settings


def test_a_kernel_that_is_called_by_a_kernel_is_inlined() -> None:
    config = CompileConfig(dead_code_elim=True)
    same = CompileConfig(dead_code_elim=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for callee in nki.jit(add_one), nki.jit(add_one, compile_config=same):
            assert np.array_equal(calling(callee, compile_config=config)(X), X + 2)
        # A configuration of nothing but defaults is that of a kernel without one.
        assert np.array_equal(calling(nki.jit(add_one, compile_config=CompileConfig()))(X), X + 2)


def test_kernels_that_disagree_are_refused() -> None:
    callee = nki.jit(add_one, compile_config=CompileConfig(barrier_check=True, nki_alloc_fallback=False))
    message = refused(NkiValidationError, lambda: calling(callee)(X))
    assert without_line(message) == (
        "kernel add_one asks for another CompileConfig (barrier_check=True, not False; nki_alloc_fallback=False, not "
        "True) than caller, into which it is inlined: give both the same, or caller a "
        "specialization_config=SpecializationConfig(allow_nested_config_override=True)"
    )
    # What the callee itself allows does not matter.
    allowing = SpecializationConfig(allow_nested_config_override=True)
    callee = nki.jit(add_one, compile_config=CompileConfig(barrier_check=True), specialization_config=allowing)
    assert "asks for another CompileConfig" in refused(NkiValidationError, lambda: calling(callee)(X))


@pytest.mark.parametrize("cores", [1, 2])
def test_kernels_that_disagree_may_be_allowed_to(cores: int) -> None:
    allowing = SpecializationConfig(allow_nested_config_override=True)
    kernel = calling(nki.jit(add_one, compile_config=CompileConfig(barrier_check=True)), specialization_config=allowing)
    message = pytest.warns(UserWarning, match=r"\(barrier_check=True, not False\) .* that of caller holds")
    with message as caught, nkilib.simulator.using(races="ignore"):
        assert np.array_equal(kernel[cores](X), X + 2)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize("argument", ["compile_config", "specialization_config"])
def test_configurations_of_another_class(argument: str) -> None:
    message = refused(TypeError, lambda: nki.jit(add_one, **{argument: {"barrier_check": True}}))
    assert message.startswith(f"nki.jit: {argument} must be an nki.compiler.")


def generation() -> Any:
    """Return the generation that runs the kernel, in a kernel."""
    return nisa.get_nc_version(), nisa.get_nc_sub_version()


def test_a_kernel_names_its_target() -> None:
    kernel = nki.jit(platform_target="trn3")(generation)
    assert kernel() == kernel[2]() == (nisa.nc_version.gen4, 1)
    assert nki.jit(generation, platform_target="trn3pre")() == (nisa.nc_version.gen4, 0)
    assert nki.jit(generation)() == (nisa.nc_version.gen3, 0)


def test_who_runs_the_kernel_may_name_another_target(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = nki.jit(generation, platform_target="trn3")
    with nkilib.simulator.using(target="trn1"):
        assert kernel()[0] is nisa.nc_version.gen2
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert kernel()[0] is nisa.nc_version.gen3


def test_a_called_kernel_runs_on_the_target_of_its_caller() -> None:
    callee = nki.jit(generation, platform_target="trn3")
    assert nki.jit(lambda: callee())()[0] is nisa.nc_version.gen3


def test_a_profile_is_of_the_target_of_the_kernel() -> None:
    assert nkilib.simulator.profile(nki.jit(add_one, platform_target="trn3"), X).generation == "trn3"


def test_a_target_that_does_not_exist() -> None:
    message = refused(ValueError, lambda: nki.jit(generation, platform_target="trn9"))
    assert message.startswith("nki.jit: platform_target must be one of trn1, ") and message.endswith("got 'trn9'")


@pytest.mark.parametrize("grid", [[2], (2,), 2], ids=str)
def test_a_grid_is_that_of_calls_without_brackets(grid: Any) -> None:
    kernel = nki.jit(grid=grid)(lambda: (nl.num_programs(), nl.program_ndim()))
    assert kernel() == (2, 1) and kernel[1]() == (1, 1)


def test_a_grid_that_cannot_be() -> None:
    for grid in ([2, 2], [], 3, "2", True):
        assert refused(NkiValidationError, lambda: nki.jit(grid=grid)) == (  # noqa: B023  # called at once
            f"nki.jit: grid must be the number of cores of a logical NeuronCore, 1 or 2, or [1] or [2], got {grid!r}"
        )
