# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The decorator ``language_function``, which adds the name of the called function of ``nki.language`` to errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ..machine.core import current_core_or_none
from ..terms.argument_checks import PLAIN_ERRORS, wrong_argument
from ..terms.calls import call_error
from ..terms.errors import NkiValidationError, add_function

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")


def language_function(function: Callable[_Parameters, _Returned]) -> Callable[_Parameters, _Returned]:
    """Decorate ``function`` so that its errors have a location in the kernel: ``file:line: nl.name: ...``.

    If an instruction inside the function raises the error, the name of the instruction follows: ``file:line:
    nl.softmax: nisa.activation: ...``. If decorated functions call each other, the error names the function that the
    kernel called. A call that does not fit the signature raises an ArgumentTypeError that also names the function.
    While decorated functions run, ``Core.language_function`` is the name of the function that the kernel called.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def located(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Returned:
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
        except PLAIN_ERRORS as error:
            name = f"nl.{located.__name__}"
            wrong_call = call_error(name, signature, args, kwargs, is_named=core is None)
            wrong = wrong_call or wrong_argument(signature, args, kwargs)
            if wrong is None:
                raise
            if core is not None:
                add_function(wrong, name, core.name)
            raise wrong from (None if wrong_call else error)
        finally:
            if outermost is not None:
                outermost.language_function = ""

    return located
