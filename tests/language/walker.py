"""A walker over the source of a kernel and of every function it reaches, which refuses what is not NKI.

The simulator runs kernels as Python and so accepts all of Python; the NKI compiler does not. `walk` reads instead of
running: the syntax tree of the kernel, then of each function that a name in it stands for, in its module or another.
The API itself (`nki`, `nisa`, `nl`) is where it stops. The rules are data: `rules.py`.

What it does not see: a function that only a run would find (picked out of a list, or handed in by the caller of the
kernel), the types of values (so it takes any documented attribute on any value), the default values of a class's
fields, and whether a loop over a register is one that the device can run.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from tests.language.names import KERNEL_TYPE
from tests.language.reader import Reader
from tests.language.report import Walk
from tests.language.worklist import Worklist


def function_of(kernel: Any) -> FunctionType:
    """The Python function of a kernel.

    Args:
        kernel: what `nki.jit` returned, or a plain function.

    Raises:
        TypeError: if it is neither.
    """
    function = kernel.func if isinstance(kernel, KERNEL_TYPE) else kernel
    if not isinstance(function, FunctionType):
        raise TypeError(f"function_of: kernel must be a function or what nki.jit returned; got {kernel!r}")
    return function


def walk(kernel: Any) -> Walk:
    """Walk a kernel and everything it reaches.

    Args:
        kernel: what `nki.jit` returned, or a plain function.

    Returns:
        The functions and classes read, and what was refused in them.

    Raises:
        TypeError: if it is neither.
    """
    worklist = Worklist(function_of(kernel))
    for function in worklist.functions():
        Reader(worklist, function).read()
    return worklist.finish()
