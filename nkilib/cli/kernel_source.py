# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernel that a command line names, as ``file.py:kernel`` or ``package.module:kernel``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nkilib.simulator.launch.kernel import Kernel

_PACKAGE = Path(__file__).resolve().parent.parent


class SourceRefusedError(ValueError):
    """There is no such kernel; the message lists those that exist."""


def kernel_of(source: str) -> Kernel:
    """Return the kernel that ``file.py:kernel`` or ``package.module:kernel`` names; a plain function becomes a kernel.

    After the call, ``import nki`` imports the simulator in this process.

    Raises:
        SourceRefusedError: if there is no such file, module or kernel, or it cannot be imported.
    """
    from nkilib.nki import nki
    from nkilib.simulator import install
    from nkilib.simulator.launch.kernel import Kernel

    where, _, name = source.rpartition(":")
    if not where:
        raise SourceRefusedError(f"must be file.py:kernel or package.module:kernel, got {source!r}")
    with suppress(RuntimeError):  # where a real nki is installed, the file has to import nkilib.nki
        install()
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


def _run(path: Path) -> ModuleType:
    """Import a file as a module that finds its neighbours, as a script does."""
    sys.path.insert(0, str(path.resolve().parent))
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"kernel_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SourceRefusedError(f"{str(path)!r} is no Python file: its name must end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _failed(where: str, error: Exception) -> str:
    return f"cannot import {where}: {described(error)}"


def described(error: Exception) -> str:
    """Describe an exception of the user's code in one line, with the innermost line of its traceback that is outside
    this library.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).resolve().is_relative_to(_PACKAGE)]
    own = [frame for frame in own if not frame.filename.startswith("<frozen ")]
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}{place}"


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


def bound_arguments(kernel: Kernel, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bind the named arguments of a kernel and its defaults, as positional and keyword arguments of a call.

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
