# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``language_function``: how a function of ``nki.language`` that runs instructions names itself in their errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ..machine.core import current_core_or_none
from ..terms.errors import NkiValidationError, add_function
from ..terms.signatures import call_error

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def language_function(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """``function`` with its errors located in the kernel, as ``file:line: nl.name: ...``.

    An instruction inside that refuses is named behind it: ``file:line: nl.softmax: nisa.activation: ...``. Of functions
    that call each other, the one that the kernel called is named. A wrong call is a TypeError that names it, too. The
    core knows the function while it runs.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def located(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        core = current_core_or_none()
        outermost = core if core is not None and not core.language_function else None
        if outermost is not None:
            outermost.language_function = located.__name__
        try:
            return function(*args, **kwargs)
        except NkiValidationError as error:
            if core is not None:  # outside a kernel there is no line of one to name
                add_function(error, f"nl.{located.__name__}", core.name)
            raise
        except TypeError:
            wrong_call = call_error(f"nl.{located.__name__}", signature, args, kwargs)
            if wrong_call is None:
                raise
            raise wrong_call from None
        finally:
            if outermost is not None:
                outermost.language_function = ""

    return located
