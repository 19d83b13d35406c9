"""Kernels that are Python but not NKI, each with what the walker calls the construct, and the same in NKI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Case:
    """A refused kernel and its corrected twin.

    Attributes:
        name: of the test.
        construct: what the message calls it.
        line: of the construct, counted from 1 in `refused`.
        refused: source with a function `kernel`.
        instead: the same in NKI.
        function: in which the construct is.
    """

    name: str
    construct: str
    line: int
    refused: str
    instead: str
    function: str = "kernel"


SYNTAX: Final = (
    Case(
        "try",
        "try",
        2,
        "def kernel(tensor):\n"
        "    try:\n"
        "        rows = tensor.shape[0]\n"
        "    except IndexError:\n"
        "        rows = 1\n"
        "    return rows\n",
        "def kernel(tensor):\n"
        "    assert len(tensor.shape) > 0, f'kernel: tensor must have rows, got shape {tensor.shape}'\n"
        "    return tensor.shape[0]\n",
    ),
    Case(
        "with",
        "with",
        2,
        "def kernel(path):\n    with path as file:\n        return file\n",
        "def kernel(tensor):\n    with nl.no_reorder():\n        nisa.memset(dst=tensor, value=0)\n    return tensor\n",
    ),
    Case(
        "with as",
        "with",
        2,
        "def kernel(tensor):\n    with nl.no_reorder() as order:\n        nisa.memset(dst=tensor, value=0)\n",
        "def kernel(tensor):\n    with nl.no_reorder():\n        nisa.memset(dst=tensor, value=0)\n",
    ),
    Case(
        "raise",
        "raise",
        3,
        "def kernel(rows):\n    if rows > 128:\n        raise rows\n",
        "def kernel(rows):\n    assert rows <= 128, f'kernel: rows must be at most 128, got {rows}'\n",
    ),
    Case(
        "lambda",
        "lambda",
        2,
        "def kernel(rows):\n    double = lambda value: value * 2\n    return double(rows)\n",
        "def double(value):\n    return value * 2\n\ndef kernel(rows):\n    return double(rows)\n",
    ),
    Case(
        "lambda of a module",
        "<lambda>, whose source cannot be read,",
        1,
        "double = lambda value: value * 2\ndef kernel(rows):\n    return double(rows)\n",
        "def double(value):\n    return value * 2\n\ndef kernel(rows):\n    return double(rows)\n",
        function="<lambda>",
    ),
    Case(
        "list comprehension",
        "a list comprehension",
        2,
        "def kernel(count):\n    tiles = [index * 2 for index in range(count)]\n    return tiles\n",
        "def kernel(count):\n    tiles = []\n    for index in range(count):\n"
        "        tiles.append(index * 2)\n    return tiles\n",
    ),
    Case(
        "set comprehension",
        "a set comprehension",
        2,
        "def kernel(count):\n    return {index for index in range(count)}\n",
        "def kernel(count):\n    return tuple(range(count))\n",
    ),
    Case(
        "dict comprehension",
        "a dict comprehension",
        2,
        "def kernel(count):\n    return {str(index): index for index in range(count)}\n",
        "def kernel(count):\n    found = dict()\n    for index in range(count):\n"
        "        found[f'{index}'] = index\n    return found\n",
    ),
    Case(
        "generator expression",
        "a generator expression",
        2,
        "def kernel(count):\n    return tuple(index for index in range(count))\n",
        "def kernel(count):\n    return tuple(range(count))\n",
    ),
    Case(
        "yield",
        "yield",
        3,
        "def kernel(count):\n    for index in range(count):\n        yield index\n",
        "def kernel(count):\n    found = []\n    for index in range(count):\n"
        "        found.append(index)\n    return found\n",
    ),
    Case(
        "yield from",
        "yield from",
        2,
        "def kernel(count):\n    yield from range(count)\n",
        "def kernel(count):\n    return tuple(range(count))\n",
    ),
    Case(
        "import inside",
        "import",
        2,
        "def kernel(value):\n    import math\n    return value\n",
        "def kernel(value):\n    return value\n",
    ),
    Case(
        "from import inside",
        "import",
        2,
        "def kernel(value):\n    from math import pi\n    return value\n",
        "PI = math.pi\ndef kernel(value):\n    return value * PI\n",
    ),
    Case(
        "global",
        "global",
        3,
        "COUNT = 0\ndef kernel(value):\n    global COUNT\n    return value\n",
        "COUNT = 0\ndef kernel(value):\n    return value + COUNT\n",
    ),
    Case(
        "nonlocal",
        "nonlocal",
        4,
        "def kernel(reg):\n"
        "    count = 0\n"
        "    def body(index):\n"
        "        nonlocal count\n"
        "        nisa.memset(dst=index, value=0)\n"
        "    nl.fori_loop(0, reg, body)\n",
        "def kernel(reg, tensor):\n"
        "    def body(index):\n"
        "        nisa.memset(dst=tensor, value=0)\n"
        "    nl.fori_loop(0, reg, body)\n",
    ),
    Case(
        "nested closure",
        "a nested function",
        3,
        "def kernel(value):\n    seen = [value]\n    def last():\n        return seen[0]\n    return last()\n",
        "def last(seen):\n    return seen[0]\n\ndef kernel(value):\n    seen = [value]\n    return last(seen)\n",
    ),
    Case(
        "class inside",
        "a class inside a function",
        2,
        "def kernel(value):\n    class Config:\n        rows = 128\n    return Config\n",
        "class Config(nl.NKIObject):\n    rows: int = 128\n\ndef kernel(value):\n    return Config().rows\n",
    ),
    Case(
        "del",
        "del",
        2,
        "def kernel(value):\n    del value\n",
        "def kernel(value):\n    value = None\n",
    ),
    Case(
        "set", "a set", 2, "def kernel(value):\n    return {value, 2}\n", "def kernel(value):\n    return (value, 2)\n"
    ),
    Case(
        "starred call",
        "a starred expression",
        2,
        "def kernel(pair):\n    return max(*pair)\n",
        "def kernel(pair):\n    return max(pair[0], pair[1])\n",
    ),
    Case(
        "starred assignment",
        "a starred expression",
        2,
        "def kernel(shape):\n    rows, *rest = shape\n    return rows\n",
        "def kernel(shape):\n    rows, columns = shape\n    return rows\n",
    ),
    Case(
        "double star call",
        "** in a call or a dict",
        2,
        "def kernel(options):\n    return dict(**options)\n",
        "def kernel(rows):\n    return dict(rows=rows)\n",
    ),
    Case(
        "double star dict",
        "** in a call or a dict",
        2,
        "def kernel(options):\n    return {**options}\n",
        "def kernel(options):\n    return {'rows': options['rows']}\n",
    ),
    Case(
        "walrus",
        "the operator :=",
        2,
        "def kernel(value):\n    if (half := value // 2) > 3:\n        return half\n",
        "def kernel(value):\n    half = value // 2\n    if half > 3:\n        return half\n",
    ),
    Case(
        "is",
        "the operator is",
        2,
        "def kernel(value):\n    return 1 if value is None else 2\n",
        "def kernel(value):\n    return 1 if value == None else 2\n",
    ),
    Case(
        "is not",
        "the operator is not",
        2,
        "def kernel(value):\n    return 1 if value is not None else 2\n",
        "def kernel(value):\n    return 1 if value != None else 2\n",
    ),
    Case(
        "matmul",
        "the operator @",
        2,
        "def kernel(left, right):\n    return left @ right\n",
        "def kernel(dst, left, right):\n    nisa.nc_matmul(dst=dst, stationary=left, moving=right)\n    return dst\n",
    ),
    Case(
        "augmented matmul",
        "the operator @",
        2,
        "def kernel(left, right):\n    left @= right\n    return left\n",
        "def kernel(left, right):\n    left *= right\n    return left\n",
    ),
    Case(
        "match",
        "match",
        2,
        "def kernel(value):\n    match value:\n        case 1:\n            return 2\n",
        "def kernel(value):\n    if value == 1:\n        return 2\n",
    ),
    Case(
        "for else",
        "else after a loop",
        2,
        "def kernel(count):\n    for index in range(count):\n        pass\n    else:\n        return 1\n",
        "def kernel(count):\n    for index in range(count):\n        pass\n    return 1\n",
    ),
    Case(
        "while else",
        "else after a loop",
        2,
        "def kernel(count):\n    while count > 3:\n        count -= 1\n    else:\n        return 1\n",
        "def kernel(count):\n    while count > 3:\n        count -= 1\n    return 1\n",
    ),
    Case(
        "device loop inside no_reorder",
        "a loop on the device inside nl.no_reorder()",
        3,
        "def kernel(reg, tensor):\n"
        "    with nl.no_reorder():\n"
        "        for index in nl.dynamic_range(reg):\n"
        "            nisa.memset(dst=tensor, value=0)\n",
        "def kernel(reg, tensor):\n"
        "    for index in nl.dynamic_range(reg):\n"
        "        with nl.no_reorder():\n"
        "            nisa.memset(dst=tensor, value=0)\n",
    ),
    Case(
        "async",
        "async",
        2,
        "def kernel(value):\n    async def later():\n        return value\n    return value\n",
        "def kernel(value):\n    return value\n",
    ),
    Case(
        "complex constant",
        "a constant of type complex",
        2,
        "def kernel(value):\n    return value + 2j\n",
        "def kernel(value):\n    return value + 2.0\n",
    ),
    Case(
        "bytes constant",
        "a constant of type bytes",
        2,
        "def kernel(value):\n    return b'value'\n",
        "def kernel(value):\n    return 'value'\n",
    ),
    Case(
        "wide integer",
        "the integer 2147483648",
        2,
        "def kernel(value):\n    return value < 2147483648\n",
        "def kernel(value):\n    return value <= 2147483647\n",
    ),
    Case(
        "wide float",
        "the number 1e+39",
        2,
        "def kernel(value):\n    return value < 1e39\n",
        "def kernel(value):\n    return value < 3.4e38\n",
    ),
    Case(
        "dict key",
        "a dict key that is no string",
        2,
        "def kernel(value):\n    return {1: value}\n",
        "def kernel(value):\n    return {'1': value}\n",
    ),
)
"""What the syntax alone shows."""

SIGNATURES: Final = (
    Case(
        "star parameter",
        "a parameter with * or **",
        1,
        "def kernel(*tensors):\n    return tensors\n",
        "def kernel(tensors):\n    return tensors\n",
    ),
    Case(
        "double star parameter",
        "a parameter with * or **",
        1,
        "def kernel(**options):\n    return options\n",
        "def kernel(options=None):\n    return options\n",
    ),
    Case(
        "positional only",
        "the separator / in a signature",
        1,
        "def kernel(rows, /):\n    return rows\n",
        "def kernel(rows):\n    return rows\n",
    ),
    Case(
        "keyword only",
        "the separator * in a signature",
        1,
        "def kernel(tensor, *, rows=128):\n    return rows\n",
        "def kernel(tensor, rows=128):\n    return rows\n",
    ),
    Case(
        "list default",
        "a list or dict as a default",
        1,
        "def kernel(stride=[1, 1]):\n    return stride\n",
        "def kernel(stride=(1, 1)):\n    return stride\n",
    ),
    Case(
        "foreign decorator",
        "the decorator functools.cache",
        1,
        "@functools.cache\ndef helper(rows):\n    return rows\n\n"
        "kernel = helper.__wrapped__\nkernel.__qualname__ = 'kernel'\n",
        "def kernel(rows):\n    return rows\n",
    ),
    Case(
        "foreign decorator of a class",
        "the decorator functools.total_ordering",
        7,
        "@functools.total_ordering\nclass Tile(nl.NKIObject):\n    def __lt__(self, other):\n        return True\n\n"
        "def kernel(rows):\n    return Tile()\n",
        "@dataclass\nclass Tile(nl.NKIObject):\n    rows: int = 1\n\ndef kernel(rows):\n    return Tile(rows)\n",
    ),
    Case(
        "jit on a helper",
        "nki.jit on a function that a kernel calls",
        6,
        "@nki.jit\ndef helper(rows):\n    return rows\n\ndef kernel(rows):\n    return helper(rows)\n",
        "def helper(rows):\n    return rows\n\n@nki.jit\ndef kernel(rows):\n    return helper(rows)\n",
    ),
)
"""What stands above the body."""

NAMES: Final = (
    Case(
        "builtin",
        "the builtin sorted",
        2,
        "def kernel(values):\n    return sorted(values)\n",
        "def kernel(values):\n    return min(values[0], values[1])\n",
    ),
    Case(
        "exception class",
        "the builtin ValueError",
        2,
        "def kernel(value):\n    return ValueError\n",
        "def kernel(value):\n    return value\n",
    ),
    Case(
        "unknown name",
        "the name missing",
        2,
        "def kernel(value):\n    return missing + value\n",
        "missing = 1\ndef kernel(value):\n    return missing + value\n",
    ),
    Case(
        "unknown attribute of a module",
        "the name functools.missing",
        2,
        "def kernel(value):\n    return functools.missing\n",
        "def kernel(value):\n    return math.pi * value\n",
    ),
    Case(
        "unknown name of the API",
        "nl.logits",
        2,
        "def kernel(value):\n    return nl.logits(value)\n",
        "def kernel(value):\n    return nl.add(value, value)\n",
    ),
    Case(
        "private name of the API",
        "nisa.__dict__",
        2,
        "def kernel(value):\n    return nisa.__dict__\n",
        "def kernel(value):\n    return nisa.reduce_cmd.reset_reduce\n",
    ),
    Case(
        "attribute of a data type",
        "nl.float32.itemsize",
        2,
        "def kernel(rows):\n    return rows * nl.float32.itemsize\n",
        "BYTES = 4\ndef kernel(rows):\n    return rows * BYTES\n",
    ),
    Case(
        "undocumented attribute",
        "the attribute .itemsize",
        2,
        "def kernel(tensor):\n    return tensor.dtype.itemsize\n",
        "def kernel(tensor):\n    return 4 if tensor.dtype == nl.float32 else 2\n",
    ),
    Case(
        "foreign function",
        "math.sqrt, of math,",
        2,
        "def kernel(rows):\n    return math.sqrt(rows)\n",
        "ROOT = math.sqrt(2)\ndef kernel(rows):\n    return rows * ROOT\n",
    ),
    Case(
        "foreign Python function",
        "functools.update_wrapper, of functools,",
        2,
        "def kernel(rows):\n    return functools.update_wrapper(rows, rows)\n",
        "def kernel(rows):\n    return rows\n",
    ),
    Case(
        "function of the simulator",
        "using, of nkilib.simulator.target.options,",
        3,
        "from nkilib.simulator import using\ndef kernel(rows):\n    return using(target=rows)\n",
        "def kernel(rows):\n    return rows\n",
    ),
    Case(
        "mutable global",
        "SEEN, which is a list,",
        3,
        "SEEN = []\ndef kernel(rows):\n    SEEN.append(rows)\n    return rows\n",
        "SEEN = (1, 2)\ndef kernel(rows):\n    return SEEN[0] + rows\n",
    ),
    Case(
        "mutable global in a tuple",
        "PAIR, which is a dict,",
        3,
        "PAIR = (1, {'rows': 2})\ndef kernel(rows):\n    return PAIR[1]\n",
        "PAIR = (1, 2)\ndef kernel(rows):\n    return PAIR[1]\n",
    ),
    Case(
        "wide integer of a module",
        "the integer 4294967296",
        3,
        "WIDE = 2**32\ndef kernel(rows):\n    return rows < WIDE\n",
        "WIDE = 2**31 - 1\ndef kernel(rows):\n    return rows <= WIDE\n",
    ),
    Case(
        "closure over mutable state",
        "seen, which is a list,",
        3,
        "def make(seen):\n    def kernel(rows):\n        return seen[0] + rows\n"
        "    return kernel\nkernel = make([1])\n",
        "def make(seen):\n    def kernel(rows):\n        return seen + rows\n    return kernel\nkernel = make(1)\n",
        function="make.<locals>.kernel",
    ),
    Case(
        "store into a module",
        "an assignment to an attribute or item of math, which is not local,",
        2,
        "def kernel(rows):\n    math.pi = rows\n",
        "def kernel(rows):\n    pi = rows\n",
    ),
    Case(
        "foreign class",
        "the class Config, which inherits from object,",
        5,
        "class Config:\n    rows = 128\n\ndef kernel(value):\n    return Config()\n",
        "class Config(nl.NKIObject):\n    rows: int = 128\n\ndef kernel(value):\n    return Config()\n",
    ),
    Case(
        "class of a parameter",
        "the class Config, which inherits from object,",
        4,
        "class Config:\n    rows = 128\n\ndef kernel(config: Config):\n    return config\n",
        "class Config(nl.NKIObject):\n    rows: int = 128\n\ndef kernel(config: Config):\n    return config.rows\n",
    ),
)
"""What the names stand for."""

HELPERS: Final = (
    Case(
        "in a helper",
        "try",
        2,
        "def helper(rows):\n    try:\n        return rows\n    finally:\n        pass\n\n"
        "def kernel(rows):\n    return helper(rows)\n",
        "def helper(rows):\n    return rows\n\ndef kernel(rows):\n    return helper(rows)\n",
        function="helper",
    ),
    Case(
        "two helpers down",
        "lambda",
        2,
        "def deepest(rows):\n    return (lambda: rows)()\n\n"
        "def helper(rows):\n    return deepest(rows)\n\ndef kernel(rows):\n    return helper(rows)\n",
        "def deepest(rows):\n    return rows\n\n"
        "def helper(rows):\n    return deepest(rows)\n\ndef kernel(rows):\n    return helper(rows)\n",
        function="deepest",
    ),
    Case(
        "in a function that is passed on",
        "raise",
        2,
        "def stage(rows):\n    raise rows\n\ndef apply(function, rows):\n    return function(rows)\n\n"
        "def kernel(rows):\n    return apply(stage, rows)\n",
        "def stage(rows):\n    return rows\n\ndef apply(function, rows):\n    return function(rows)\n\n"
        "def kernel(rows):\n    return apply(stage, rows)\n",
        function="stage",
    ),
    Case(
        "in a method",
        "del",
        4,
        "class Tile(nl.NKIObject):\n    rows: int = 1\n    def clear(self):\n        del self.rows\n\n"
        "def kernel(rows):\n    return Tile()\n",
        "class Tile(nl.NKIObject):\n    rows: int = 1\n    def clear(self):\n        self.rows = 0\n\n"
        "def kernel(rows):\n    tile = Tile()\n    tile.clear()\n    return tile.rows\n",
        function="Tile.clear",
    ),
)
"""What is below the kernel."""

CASES: Final = (*SYNTAX, *SIGNATURES, *NAMES, *HELPERS)
