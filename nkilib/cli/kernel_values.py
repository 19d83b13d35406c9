# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``--arg NAME=VALUE``: the arguments of a kernel on a command line.

A value is JSON that may contain tensors and names of NKI: ``bf16[4096,8192]`` is a tensor of that type and shape,
``nl.float32`` is NKI's object of that name, and ``[f32[128,64], null]`` is a list of a tensor and None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .launch_arguments import SHORT_DTYPES, dtype_name

if TYPE_CHECKING:
    from nkilib.simulator.profiling.trips import AskedTrips

# A string of JSON, which may hold anything; a tensor; a name of NKI. Strings are matched so as to be passed over.
_TOKEN = re.compile(
    r'(?P<string>"(?:\\.|[^"\\])*")'
    r"|(?P<dtype>(?:nl\.)?[A-Za-z_]\w*)\[(?P<shape>[^][{}\"]*)\]"
    r"|(?P<name>\b(?:nl|nisa)(?:\.\w+)+)"
)
_PLACE = "nkilib value"


class ValueRefusedError(ValueError):
    """A value has no valid form; the message says why, and which forms there are."""


def value_of(text: str) -> Any:
    """Return the value that a text stands for.

    Raises:
        ValueRefusedError: if it is neither a tensor, nor a name of NKI, nor JSON of these.
    """
    values: list[Any] = []

    def replaced(match: re.Match[str]) -> str:
        if match["string"] is not None:
            return match["string"]
        values.append(_named(match["name"]) if match["name"] else _tensor(match["dtype"], match["shape"]))
        return json.dumps({_PLACE: len(values) - 1})

    def placed(parsed: dict[str, Any]) -> Any:
        return values[parsed[_PLACE]] if parsed.keys() == {_PLACE} else parsed

    try:
        return json.loads(_TOKEN.sub(replaced, text), object_hook=placed)
    except json.JSONDecodeError:
        raise ValueRefusedError(
            f"must be a tensor such as bf16[4096,8192], a name such as nl.float32, or JSON such as 8, 0.5, true, null, "
            f'"text" (with its quotes) or {{"a": 1}}; got {text!r}'
        ) from None


def _tensor(dtype: str, shape: str) -> Any:
    from nkilib.simulator import spec
    from nkilib.simulator.terms.dtypes import ALL_DTYPES

    short_name, name = dtype.removeprefix("nl."), dtype_name(dtype)
    if name not in ALL_DTYPES:
        known = ", ".join([*SHORT_DTYPES, *ALL_DTYPES])
        raise ValueRefusedError(f"{short_name!r} is no type; types are {known}")
    sizes = [size.strip() for size in shape.split(",")]
    if not all(size.isdecimal() and size.isascii() and int(size) > 0 for size in sizes):
        raise ValueRefusedError(
            f"a shape is positive integers with commas between them, as in {short_name}[4,8]; got [{shape}]"
        )
    return spec([int(size) for size in sizes], name)


def _named(path: str) -> Any:
    from nkilib.nki import nisa, nl

    module, *attributes = path.split(".")
    value: Any = {"nl": nl, "nisa": nisa}[module]
    for attribute in attributes:
        if not hasattr(value, attribute):
            raise ValueRefusedError(f"NKI has no {path}")
        value = getattr(value, attribute)
    return value


def arguments_of(texts: Sequence[str]) -> dict[str, Any]:
    """Return the arguments by name, from texts ``NAME=VALUE``.

    Raises:
        ValueRefusedError: if a text has another form, a name comes twice, or a value is not valid.
    """
    arguments: dict[str, Any] = {}
    for text in texts:
        name, is_given, value = text.partition("=")
        if not is_given or not name.isidentifier():
            raise ValueRefusedError(f"--arg must be NAME=VALUE, as in x=bf16[4096,8192]; got {text!r}")
        if name in arguments:
            raise ValueRefusedError(f"--arg {name}: is given twice")
        try:
            arguments[name] = value_of(value)
        except ValueRefusedError as error:
            raise ValueRefusedError(f"--arg {name}: {error}") from None
    return arguments


def trips_of(texts: Sequence[str]) -> AskedTrips | None:
    """Return the argument for ``nkilib.simulator.profile(trips=)``, from texts ``N``, ``none``, ``all`` or ``LOOP=N``.

    Raises:
        ValueRefusedError: if a text has another form, or there are several and not all name a loop.
    """
    if not texts:
        return None
    if list(texts) == ["none"]:
        return "none"
    if list(texts) == ["all"]:
        return "all"
    named: dict[str, int] = {}
    for text in texts:
        loop, _, count = text.rpartition("=")
        if not (count.isdecimal() and count.isascii()) or (len(texts) > 1 and not loop):
            raise ValueRefusedError(f"--trips must be a number, none, all, or LOOP=N for each loop; got {text!r}")
        named[loop] = int(count)
    return named.get("", named)
