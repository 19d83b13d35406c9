# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Public names: functions, whatever else has been imported, no module that could take their place, an assignment to
``torch.nn.functional``, and the message of ``import nkilib.torch`` without a PyTorch that is new enough.
"""

from __future__ import annotations

import importlib.util
import inspect
import pydoc
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import nkilib.torch
from nkilib.experimental.loss.cross_entropy.launch import LossOptions, RecipeOptions
from nkilib.torch import CrossEntropyLoss, cross_entropy, vocab_parallel_cross_entropy
from nkilib.torch._requirement import REQUIREMENT
from nkilib.torch.transformers import causal_lm_loss
from tests.fresh_python import CHECKOUT
from tests.torch.inputs import CLASSES, gradient_of, make_logits, make_targets
from tests.torch.of_pytorch import linear_only
from tests.warm_python import run_script

HOME = CHECKOUT / "nkilib" / "torch"
MODULES = [
    ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__") for path in HOME.rglob("*.py")
]


def test_no_module_has_a_public_name() -> None:
    """Importing a module sets it as an attribute of its package, over a function of the same name."""
    assert len(MODULES) > 20
    for name in nkilib.torch.__all__:
        assert importlib.util.find_spec(f"nkilib.torch.{name}") is None
        assert callable(getattr(nkilib.torch, name))


@pytest.mark.parametrize("are_first", [False, True])
def test_names_are_functions_whatever_is_imported_before_or_after(are_first: bool, tmp_path: Path) -> None:
    exported = ", ".join(nkilib.torch.__all__)
    names = f"from nkilib.torch import {exported}"
    modules = "\n".join(f"import {module}" for module in MODULES)
    check = f"import types\nassert not any(isinstance(value, types.ModuleType) for value in ({exported}))\n"
    code = "\n".join([names, modules, check] if are_first else [modules, names, check])
    script = tmp_path / "script.py"
    script.write_text(f"{code}\nimport nkilib.torch\nassert nkilib.torch.cross_entropy is cross_entropy\n")
    done = run_script(script)
    assert done.returncode == 0, done.output


FUNCTIONS: list[Callable[..., Any]] = [
    cross_entropy,
    CrossEntropyLoss,
    vocab_parallel_cross_entropy,
    causal_lm_loss,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_option_is_a_keyword_of_every_function(function: Callable[..., Any]) -> None:
    """The options that PyTorch has too are written there; the others are shared, and shown by signature and help."""
    shown = inspect.signature(function).parameters
    for name, default in vars(LossOptions()).items():
        assert shown[name].default == default
        assert f"{name}: '{LossOptions.__annotations__[name]}' = {default}" in pydoc.plain(pydoc.render_doc(function))
    assert {*RecipeOptions.__annotations__, "ignore_index", "label_smoothing"} == set(vars(LossOptions()))


def test_a_misspelt_argument_is_answered_with_the_nearest_one() -> None:
    for name in nkilib.torch.__all__:
        function = getattr(nkilib.torch, name)
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters.values()
            required = [None for item in parameters if item.default is item.empty]
            last = [item.name for item in parameters][-1]
            with pytest.raises(TypeError) as caught:
                function(*required, **{f"{last}x": None})
            assert f"there is no argument '{last}x' (did you mean '{last}'?)" in str(caught.value)


POSITIONS, FEATURES = 6, 16


@linear_only
@pytest.mark.parametrize("options", [{}, {"bias": True, "reduction": "none"}, {"ignore_index": 3, "reduction": "sum"}])
def test_the_module_of_pytorch_calls_what_is_assigned(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = torch.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, **options, dtype=torch.bfloat16)
    x = make_logits(POSITIONS, FEATURES, spread=1.0).bfloat16().requires_grad_()
    target = make_targets(POSITIONS)
    assert module(x, target).dtype == torch.bfloat16
    monkeypatch.setattr(torch.nn.functional, "linear_cross_entropy", nkilib.torch.linear_cross_entropy)
    loss = module(x, target)
    assert loss.dtype == torch.float32  # which PyTorch's is not

    def ours() -> Tensor:
        keywords = {name: value for name, value in options.items() if name != "bias"}
        return nkilib.torch.linear_cross_entropy(
            x, module.linear.weight, target, linear_bias=module.linear.bias, **keywords
        )

    assert torch.equal(loss, ours())
    upstream = torch.ones_like(loss)
    assert torch.equal(gradient_of(loss, x, upstream), gradient_of(ours(), x, upstream))


def pretend(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    other = ModuleType("torch")
    vars(other).update(__version__=version, __file__="here.py")
    monkeypatch.setitem(sys.modules, "torch", other)


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"^nkilib.torch: needs torch 2.13 or later, .*pip install '\.\[torch\]'"):
        REQUIREMENT.check()


def test_with_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "2.12.1+cpu")
    with pytest.raises(ImportError, match=r"^nkilib.torch: needs torch 2.13 or later, got 2.12.1\+cpu in here.py; "):
        REQUIREMENT.check()


@pytest.mark.parametrize("version", ["2.13.0a0+git1234", "2.14.1+cpu", "3.0"])
def test_with_one_that_is_new_enough(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, version)
    REQUIREMENT.check()
