# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Public names: functions, and no module that could take their place; every option is a keyword."""

from __future__ import annotations

import importlib.util
import inspect
import pydoc

import pytest

import nkilib.jax
from nkilib.experimental.loss.cross_entropy.launch import LossOptions


def test_no_module_has_a_public_name() -> None:
    """Importing a module sets it as an attribute of its package, over a function of the same name."""
    for name in nkilib.jax.__all__:
        assert importlib.util.find_spec(f"nkilib.jax.{name}") is None
        assert callable(getattr(nkilib.jax, name))


def test_every_option_is_a_keyword() -> None:
    shown = inspect.signature(nkilib.jax.cross_entropy).parameters
    help_text = pydoc.plain(pydoc.render_doc(nkilib.jax.cross_entropy))
    types = {**LossOptions.__annotations__, "temperature": "Array | float"}
    for name, default in vars(LossOptions()).items():
        assert shown[name].default == default
        assert f"{name}: '{types[name]}' = {default}" in help_text


def test_linear_functions_have_the_names_of_those_of_torch() -> None:
    """JAX alone cannot have sums that are written in place, process groups, and a launch that grants memory."""
    torch = pytest.importorskip("nkilib.torch")
    without = {"options", "grad_weight_sum", "memory_limit", "group", "num_classes", "shard_sizes"}
    for name in ("linear_cross_entropy", "linear_token_scores"):
        ours, others = (inspect.signature(getattr(module, name)).parameters for module in (nkilib.jax, torch))
        shared = [item for item in others if item not in without]
        assert list(ours) == [*shared, "weight_layout"]
        for element in set(shared) - {"ignore_index"}:
            assert ours[element].default == others[element].default
    assert nkilib.jax.LinearTokenScores._fields == torch.LinearTokenScores._fields


def test_a_misspelt_argument_is_answered_with_the_nearest_one() -> None:
    for name in ("cross_entropy", "linear_cross_entropy", "linear_token_scores"):
        function = getattr(nkilib.jax, name)
        parameters = inspect.signature(function).parameters.values()
        required = [None for item in parameters if item.default is item.empty]
        with pytest.raises(
            TypeError, match=r"there is no argument 'logit_softcapp' \(did you mean 'logit_softcap'\?\)"
        ):
            function(*required, logit_softcapp=30.0)
