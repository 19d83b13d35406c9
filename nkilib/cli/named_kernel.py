# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernel of a user's file that a command line names, and its arguments.

The kernel is ``file.py:kernel`` or ``package.module:kernel`` (:func:`kernel_of`). Its arguments are ``NAME=VALUE``
(:func:`arguments_of`), which :func:`bound_arguments` binds to the kernel's parameters. A value is JSON that may contain
tensors and names of NKI: ``bf16[4096,8192]`` is a tensor of that type and shape, ``nl.float32`` is NKI's object of that
name, and ``[f32[128,64], null]`` is a list of a tensor and None.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .arguments import SHORT_DTYPES, dtype_name

if TYPE_CHECKING:
    from nkilib.simulator.launch.kernel import Kernel

_PACKAGE = Path(__file__).resolve().parent.parent
# A string of JSON, which may hold anything; a tensor; a name of NKI. Strings are matched so as to be passed over.
_TOKEN = re.compile(
    r'(?P<string>"(?:\\.|[^"\\])*")'
    r"|(?P<dtype>(?:nl\.)?[A-Za-z_]\w*)\[(?P<shape>[^][{}\"]*)\]"
    r"|(?P<name>\b(?:nl|nisa)(?:\.\w+)+)"
)
# The only key of an object of JSON that stands for a value that JSON does not have.
_PLACE = "nkilib value"


class SourceRefusedError(ValueError):
    """Raised if a kernel does not exist or cannot take the arguments, or if its module cannot be imported."""


class ValueRefusedError(ValueError):
    """Raised if the text of an argument has no valid form; the message names the valid forms."""


def _run(path: Path) -> ModuleType:
    # The file can import files of its folder, as a script can.
    sys.path.insert(0, str(path.resolve().parent))
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"kernel_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SourceRefusedError(f"{str(path)!r} is no Python file: its name must end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(error: Exception) -> str:
    """Return one line that describes an exception of the user's code.

    The line names the innermost traceback line outside this library.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).resolve().is_relative_to(_PACKAGE)]
    own = [frame for frame in own if not frame.filename.startswith("<frozen ")]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


def _failed(where: str, error: Exception) -> str:
    return f"cannot import {where}: {described(error)}"


def _imported(where: str) -> ModuleType:
    path = Path(where)
    try:
        is_file = where.endswith(".py") or path.exists() or path.parent != Path()
        is_missing = is_file and not path.is_file()
    except OSError as error:  # of a name that is too long, for instance
        raise SourceRefusedError(f"cannot read {where!r}: {error.strerror}") from None
    if is_missing:
        raise SourceRefusedError(f"there is no file {where!r}")
    try:
        return _run(path) if is_file else importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise SourceRefusedError(
                f"there is no module {where!r} on the path; a file is named with its .py"
            ) from None
        raise SourceRefusedError(_failed(where, error)) from error
    except Exception as error:
        raise SourceRefusedError(_failed(where, error)) from error


def _what_there_is(module: ModuleType) -> str:
    from nkilib.simulator.launch.kernel import Kernel

    kernels = [name for name, value in vars(module).items() if isinstance(value, Kernel)]
    functions = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    parts = [f"kernels: {', '.join(kernels)}"] if kernels else []
    parts += [f"functions: {', '.join(functions)}"] if functions else []
    return f"it has {'; '.join(parts)}" if parts else "it has no kernel and no function"


def kernel_of(source: str) -> Kernel:
    """Return the kernel that ``file.py:kernel`` or ``package.module:kernel`` names; a plain function becomes a kernel.

    After the call, ``import nki`` imports the simulator in this process, except where a real nki is installed.

    Raises:
        SourceRefusedError: the file, module or kernel does not exist, or cannot be imported.
    """
    from nkilib.nki import nki
    from nkilib.simulator import install
    from nkilib.simulator.launch.kernel import Kernel

    where, _, name = source.rpartition(":")
    with suppress(RuntimeError):  # where a real nki is installed, the file has to import nkilib.nki
        install()
    if not where:
        there_is = f"; {_what_there_is(_imported(source))}" if Path(source).is_file() else ""
        raise SourceRefusedError(f"must be file.py:kernel or package.module:kernel, got {source!r}{there_is}")
    module = _imported(where)
    value: Any = module
    for attribute in name.split("."):
        value = getattr(value, attribute, None)
    if isinstance(value, Kernel):
        return value
    if inspect.isfunction(value):
        kernel: Kernel = nki.jit(value)
        return kernel
    if value is None:
        raise SourceRefusedError(f"{where} has no kernel {name!r}; {_what_there_is(module)}")
    raise SourceRefusedError(f"{where}: {name!r} is no kernel but {value!r}; {_what_there_is(module)}")


def bound_arguments(kernel: Kernel, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments for a call of a kernel, with defaults filled in.

    Args:
        kernel: the kernel.
        arguments: the values that the user gave, by name of the parameter.

    Raises:
        SourceRefusedError: an argument is unknown, or one without a default is missing.
    """
    signature = inspect.signature(kernel.func)
    parameters = signature.parameters
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    takes = [name for name, parameter in parameters.items() if parameter.kind in by_name]
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if takes_any else [name for name in arguments if name not in takes]
    if unknown:
        raise SourceRefusedError(
            f"{kernel.__name__} has no parameter {unknown[0]!r}; it has {', '.join(takes) or 'none'}"
        )
    missing = [name for name in takes if name not in arguments and parameters[name].default is inspect.Parameter.empty]
    if missing:
        options = " ".join(f"--arg {name}=..." for name in missing)
        raise SourceRefusedError(f"{kernel.__name__} needs {', '.join(missing)} as well: add {options}")
    bound = signature.bind(**arguments)
    bound.apply_defaults()
    return bound.args, bound.kwargs


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


def value_of(text: str) -> Any:
    """Return the Python value of an argument's text.

    A text is a tensor such as ``bf16[4,8]``, whose value is a :class:`~nkilib.simulator.Spec`, a name of NKI, or JSON
    that may contain tensors and names.

    Raises:
        ValueRefusedError: the text has none of these forms.
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


def arguments_of(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of arguments by name.

    Args:
        texts: texts of the form ``NAME=VALUE``.

    Raises:
        ValueRefusedError: a text has another form, a name occurs twice, or a value is not valid.
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
