"""Public names: functions, and no module that could take their place; every option is a keyword."""

from __future__ import annotations

import importlib.util
import inspect
import pydoc

import nkilib.jax
from nkilib.experimental.loss.cross_entropy.options import LossOptions


def test_no_module_has_a_public_name() -> None:
    """Importing a module sets it as an attribute of its package, over a function of the same name."""
    for name in nkilib.jax.__all__:
        assert importlib.util.find_spec(f"nkilib.jax.{name}") is None
        assert callable(getattr(nkilib.jax, name))


def test_every_option_is_a_keyword() -> None:
    shown = inspect.signature(nkilib.jax.cross_entropy).parameters
    help_text = pydoc.plain(pydoc.render_doc(nkilib.jax.cross_entropy))
    for name, default in vars(LossOptions()).items():
        assert shown[name].default == default
        assert f"{name}: '{LossOptions.__annotations__[name]}' = {default}" in help_text
