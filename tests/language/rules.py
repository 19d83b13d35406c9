"""The NKI language as data: what a kernel may contain, what it may not, and which page of the documentation says so.

Two lists of Python's syntax-tree nodes. What is on neither is refused all the same (`UNKNOWN`). Pages are named by
their path in the aws-neuron-sdk documentation.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Final

GUIDE: Final = "nki/get-started/nki-language-guide.rst"
MIGRATION: Final = "nki/migration/index.rst"
SCHEDULING: Final = "nki/guides/how-to-scheduling-apis.rst"
LOOPS: Final = "nki/deep-dives/nki-dynamic-loops.rst"
SIMULATOR: Final = "nki/guides/nki_simulator.rst"
TENSOR_API: Final = "nki/api/nki/language/__init__.py, NkiTensor"
INSTRUCTION_API: Final = "nki/api/nki/isa/__init__.py, NkiInstruction"
# Not documentation: the kernels that AWS publishes, which its compiler accepts. For what the guide leaves unnamed.
NKI_LIBRARY: Final = "aws-neuron/nki-library, src/nkilib_src/nkilib/core"

VALUES: Final = f"{GUIDE}, NKI Values"
SPECIALIZATION: Final = f"{GUIDE}, Compilation Model"
CONTROL_FLOW: Final = f"{GUIDE}, Control Flow"
CACHING: Final = f"{GUIDE}, Kernel Caching"
CLASSES: Final = f"{GUIDE}, Class Support"
COMPOSABLE: Final = f"{GUIDE}, Composable Kernels"


@dataclass(frozen=True)
class Rule:
    """Why a construct is no NKI.

    Attributes:
        construct: what it is called.
        reason: why it is refused, a clause.
        remedy: what to write instead, a sentence without its full stop.
        source: the page of the documentation, and its section.
    """

    construct: str
    reason: str
    remedy: str
    source: str


ALLOWED: Final[dict[type[ast.AST], str]] = {
    # Statements.
    ast.Assign: VALUES,
    ast.AnnAssign: CLASSES,
    ast.AugAssign: CONTROL_FLOW,
    ast.Assert: f"{GUIDE}, the first example",
    ast.Break: NKI_LIBRARY,
    ast.Continue: NKI_LIBRARY,
    ast.Expr: f"{GUIDE}, the first example",
    ast.For: CONTROL_FLOW,
    ast.If: CONTROL_FLOW,
    ast.Pass: CLASSES,
    ast.Return: f"{GUIDE}, the first example",
    ast.While: CONTROL_FLOW,
    # Expressions. Arithmetic, comparisons and conditional expressions are in because the guide lets the compiler
    # evaluate expressions of compile-time values as Python does.
    ast.Attribute: f"{GUIDE}, Tensor Values",
    ast.BinOp: SPECIALIZATION,
    ast.BoolOp: SPECIALIZATION,
    ast.Call: COMPOSABLE,
    ast.Compare: SPECIALIZATION,
    ast.Constant: VALUES,
    ast.Dict: VALUES,
    ast.FormattedValue: f"{GUIDE}, the first example",
    ast.IfExp: SPECIALIZATION,
    ast.JoinedStr: f"{GUIDE}, the first example",
    ast.List: VALUES,
    ast.Name: VALUES,
    ast.Slice: f"{GUIDE}, Tensor Indexing",
    ast.Subscript: f"{GUIDE}, Tensor Indexing",
    ast.Tuple: VALUES,
    ast.UnaryOp: SPECIALIZATION,
    ast.keyword: f"{GUIDE}, the first example",
    # Operators.
    **dict.fromkeys((ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow), SPECIALIZATION),
    **dict.fromkeys((ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor), SPECIALIZATION),
    **dict.fromkeys((ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, ast.Invert), SPECIALIZATION),
    **dict.fromkeys((ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE), SPECIALIZATION),
    **dict.fromkeys((ast.In, ast.NotIn), f"{SPECIALIZATION}; {NKI_LIBRARY}"),
    **dict.fromkeys((ast.Load, ast.Store), VALUES),
}
"""Node -> where the documentation shows it. Some carry conditions, which `walker.py` checks."""

_LOOP_INSTEAD: Final = "Write a for loop that appends to a list or assigns to a dict"
_ASSERT_INSTEAD: Final = "State the requirement in an assert, before the first instruction"
_PASS_INSTEAD: Final = "Pass what it needs as an argument, and return what it makes"

_comprehension = "it is not among the constructs that the guide lists: lists and dicts are filled by loops"
_exceptions = (
    "NKI has no exceptions: everything but the instructions is evaluated by the compiler, before the device runs"
)
_generator = "a kernel is specialized into a flat sequence of instructions, and an NKI value is no generator"

REFUSED: Final[dict[type[ast.AST], Rule]] = {
    ast.ListComp: Rule("a list comprehension", _comprehension, _LOOP_INSTEAD, CONTROL_FLOW),
    ast.SetComp: Rule("a set comprehension", _comprehension, _LOOP_INSTEAD, CONTROL_FLOW),
    ast.DictComp: Rule("a dict comprehension", _comprehension, _LOOP_INSTEAD, CONTROL_FLOW),
    ast.GeneratorExp: Rule("a generator expression", _comprehension, _LOOP_INSTEAD, CONTROL_FLOW),
    ast.Yield: Rule("yield", _generator, "Append to a list and return it", SPECIALIZATION),
    ast.YieldFrom: Rule("yield from", _generator, "Append to a list and return it", SPECIALIZATION),
    ast.Try: Rule("try", _exceptions, _ASSERT_INSTEAD, SPECIALIZATION),
    ast.Raise: Rule("raise", _exceptions, _ASSERT_INSTEAD, SPECIALIZATION),
    ast.Lambda: Rule(
        "lambda",
        "functions that are passed around are named functions of a module, whose source the compiler reads",
        "Define a function at module level",
        COMPOSABLE,
    ),
    ast.Import: Rule(
        "import", "a kernel sees the names of its module only", "Import at module level", f"{GUIDE}, NKI Namespaces"
    ),
    ast.ImportFrom: Rule(
        "import", "a kernel sees the names of its module only", "Import at module level", f"{GUIDE}, NKI Namespaces"
    ),
    ast.Global: Rule("global", "kernels are cached, hence pure functions of their arguments", _PASS_INSTEAD, CACHING),
    ast.Nonlocal: Rule(
        "nonlocal", "kernels are cached, hence pure functions of their arguments", _PASS_INSTEAD, CACHING
    ),
    ast.Delete: Rule(
        "del", "it is not among the statements that the guide lists", "Let the name go unused", CONTROL_FLOW
    ),
    ast.ClassDef: Rule(
        "a class inside a function", "the compiler brings in classes of a module", "Define it at module level", CLASSES
    ),
    ast.Set: Rule("a set", "containers are tuples, lists and dicts with string keys", "Use a tuple or a list", VALUES),
    ast.Starred: Rule(
        "a starred expression",
        "the documentation shows no call or assignment of that form",
        "Write every item out",
        VALUES,
    ),
    ast.NamedExpr: Rule("the operator :=", "assignments are statements", "Assign in a statement of its own", VALUES),
    ast.Is: Rule(
        "the operator is",
        "identity means nothing while the compiler traces, and its operator is unsupported since NKI 0.3.0",
        "Compare with ==",
        f"{MIGRATION}, Replace is / is not with == / !=",
    ),
    ast.IsNot: Rule(
        "the operator is not",
        "identity means nothing while the compiler traces, and its operator is unsupported since NKI 0.3.0",
        "Compare with !=",
        f"{MIGRATION}, Replace is / is not with == / !=",
    ),
    ast.MatMult: Rule(
        "the operator @", "tensors are multiplied by an instruction", "Call nisa.nc_matmul", f"{GUIDE}, NKI Namespaces"
    ),
    ast.AsyncFunctionDef: Rule("async", "NKI is sequential", "Write plain functions and loops", SPECIALIZATION),
    ast.AsyncFor: Rule("async", "NKI is sequential", "Write plain functions and loops", SPECIALIZATION),
    ast.AsyncWith: Rule("async", "NKI is sequential", "Write plain functions and loops", SPECIALIZATION),
    ast.Await: Rule("await", "NKI is sequential", "Write plain functions and loops", SPECIALIZATION),
    ast.Match: Rule("match", "branches are if, elif and else", "Write if, elif and else", CONTROL_FLOW),
}
"""Node -> why not. The list only makes messages better: a node on neither list is refused as `UNKNOWN`."""

UNKNOWN: Final = Rule(
    "{kind}", "the documentation does not show it", "Write it with the constructs of the guide", GUIDE
)

# Conditions on nodes that are allowed, by the name under which `walker.py` raises them.
WITH: Final = Rule(
    "with", "the only context manager of NKI is nl.no_reorder()", "Take the body out of the with statement", SCHEDULING
)
DYNAMIC_LOOP_IN_ORDER: Final = Rule(
    "a loop on the device inside nl.no_reorder()",
    "the compiler does not support it",
    "Put the nl.no_reorder() inside the body of the loop",
    f"{LOOPS}, Interaction with no_reorder",
)
LOOP_ELSE: Final = Rule("else after a loop", "the guide shows loops without it", "Set a flag in the loop", CONTROL_FLOW)
NESTED: Final = Rule(
    "a nested function",
    "kernels close over no mutable state; only the body of nl.fori_loop or nl.while_loop is a function in a function",
    "Move it to module level, and pass what it closes over as arguments",
    f"{CACHING}; {MIGRATION}, Pattern 1",
)
STAR_PARAMETER: Final = Rule(
    "a parameter with * or **", "parameters have fixed names", "Name every parameter", f"{GUIDE}, Class Support"
)
POSITIONAL_ONLY: Final = Rule(
    "the separator / in a signature",
    "the documentation shows no such signature",
    "Remove it",
    f"{GUIDE}, Class Support",
)
KEYWORD_ONLY: Final = Rule(
    "the separator * in a signature",
    "the compiler does not support it since NKI 0.3.0",
    "Remove it, and put the parameters with defaults last",
    f"{MIGRATION}, Remove keyword-only argument separator",
)
MUTABLE_DEFAULT: Final = Rule(
    "a list or dict as a default",
    "arguments of kernels are immutable, and a default would be shared between calls",
    "Use a tuple, or None",
    f"{MIGRATION}, Replace list kernel arguments with tuples",
)
DOUBLE_STAR_CALL: Final = Rule(
    "** in a call or a dict", "the documentation shows no such form", "Write every keyword out", VALUES
)
DICT_KEY: Final = Rule("a dict key that is no string", "keys are strings", "Use string keys, or a list", VALUES)
CONSTANT: Final = Rule(
    "a constant of type {type}",
    "values are None, booleans, 32-bit numbers, strings and tensors",
    "Use one of those",
    VALUES,
)
INTEGER: Final = Rule("the integer {value}", "integers have 32 bits", "Stay within [-2**31, 2**31)", VALUES)
FLOAT: Final = Rule("the number {value}", "floating-point numbers have 32 bits", "Stay within float32", VALUES)
DECORATOR: Final = Rule(
    "the decorator {name}",
    "NKI functions carry nki.jit on the kernel itself, or nothing",
    "Remove it",
    f"{GUIDE}, Compilation Model",
)
JIT_ON_HELPER: Final = Rule(
    "nki.jit on a function that a kernel calls",
    "the compiler takes the kernel object for a value of a foreign class",
    "Remove the decorator; to launch the function as well, say nki.jit(function) where it is launched",
    f"{MIGRATION}, Remove nki.jit decorator on sub-kernels",
)
BUILTIN: Final = Rule(
    "the builtin {name}", "the documentation does not show it in a kernel", "Use one of {allowed}", GUIDE
)
ATTRIBUTE: Final = Rule(
    "the attribute .{name}",
    "neither tensors, lists, dicts nor instructions of NKI document it",
    "Use what they document",
    TENSOR_API,
)
API_NAME: Final = Rule(
    "{name}", "the API has no such public name", "See the list of names of the API", f"{GUIDE}, NKI Namespaces"
)
UNRESOLVED: Final = Rule(
    "the name {name}", "it is bound nowhere that a compiler could look", "Define or import it at module level", GUIDE
)
GLOBAL_STATE: Final = Rule(
    "{name}, which is a {type},",
    "a kernel is cached and has to depend on its arguments alone: what it reads from outside must be immutable",
    "Pass it as an argument, or make it a number, a string or a tuple",
    CACHING,
)
FOREIGN: Final = Rule(
    "{name}, of {owner},",
    "the compiler reads NKI code, and this belongs to another library",
    "Compute it outside of the kernel and pass it as an argument",
    f"{SIMULATOR}, NKI Meta-Programming Support",
)
STORE_OUTSIDE: Final = Rule(
    "an assignment to an attribute or item of {name}, which is not local,",
    "kernels are cached, hence pure functions of their arguments",
    _PASS_INSTEAD,
    CACHING,
)
CLASS_BASES: Final = Rule(
    "the class {name}, which inherits from {bases},",
    "a class of NKI inherits from nl.NKIObject and nothing else, or is a plain Enum",
    "Derive it from nl.NKIObject alone",
    CLASSES,
)
NO_SOURCE: Final = Rule(
    "{name}, whose source cannot be read,", "the compiler reads source", "Define it with def, in a file", GUIDE
)

BUILTINS: Final[dict[str, str]] = {
    "range": CONTROL_FLOW,
    "len": VALUES,
    "print": f"{GUIDE}, the first example",
    "dict": VALUES,
    "tuple": SCHEDULING,
    "min": f"{MIGRATION}, Deprecation of masking",
    "slice": f"{MIGRATION}, Deprecation of masking",
    "max": "nki/test/test_nki_isa_nc_matmul.py",
    "float": "nki/test/test_nki_isa_nc_match_replace8.py",
    **dict.fromkeys(("list", "int", "str", "divmod", "isinstance"), NKI_LIBRARY),
}
"""Python builtins that a kernel may call -> where they are seen in one."""

ATTRIBUTES: Final[dict[str, str]] = {
    **dict.fromkeys(("shape", "strides", "offset", "name", "dtype", "buffer", "ndim", "size"), TENSOR_API),
    **dict.fromkeys(("is_contiguous", "is_indirect", "get_pattern", "permute", "broadcast", "expand_dim"), TENSOR_API),
    **dict.fromkeys(("squeeze_dim", "reshape_dim", "flatten_dims", "reshape", "rearrange", "slice"), TENSOR_API),
    **dict.fromkeys(("select", "vector_select", "ap", "view", "indirect"), TENSOR_API),
    **dict.fromkeys(("append", "extend", "index", "remove", "reverse"), f"{VALUES} (lists)"),
    **dict.fromkeys(("keys", "items", "pop", "setdefault"), f"{VALUES} (dicts)"),
    "depends_on": INSTRUCTION_API,
    "value": f"{GUIDE}, Enumerations",
}
"""Attributes and methods of values that are known while the kernel runs only -> where they are documented."""
