# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A stated error that is wrong fails with both figures and with what to correct."""

from __future__ import annotations

import pytest

from tests.experimental.loss.skeletons.term_errors import assert_kept, assert_near, assert_same_functions


@pytest.mark.parametrize("of_reference", [1.2, 0.7, float("nan")])
def test_a_figure_that_is_not_derived(of_reference: float) -> None:
    assert_near("log_cosh", "own", 1.0, 0.9, 0.8)
    expected = (
        rf"^log_cosh: own of its TermError must be 1 to 1\.25 times what the reference derives: stated 1 u, derived "
        rf"{of_reference:g} u of the largest term on hard inputs; correct the TermError, or what the reference passes "
        rf"to Derived\.of_units$"
    )
    with pytest.raises(AssertionError, match=expected):
        assert_near("log_cosh", "own", 1.0, of_reference, 0.8)


def test_functions_that_differ() -> None:
    assert_same_functions("log_cosh", {"exp": 1.0}, ["exp"])
    with pytest.raises(AssertionError, match=r"stated \['exp'\], derived \['exp', 'softplus'\]; correct the TermError"):
        assert_same_functions("log_cosh", {"exp": 1.0}, ["softplus", "exp"])


@pytest.mark.parametrize("observed", [1.6, float("nan")])
def test_a_kernel_that_does_not_keep_it(observed: float) -> None:
    assert_kept("log_cosh", 1.5, 1.5)
    expected = rf"stated 1\.5 u of the largest term .*, observed {observed:g} u; derive the error from the instructions"
    with pytest.raises(AssertionError, match=expected):
        assert_kept("log_cosh", observed, 1.5)
