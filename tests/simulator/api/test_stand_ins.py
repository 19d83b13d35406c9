# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Names of older NKI releases: what public kernels still say works, what was removed says what to use."""

from __future__ import annotations

import re
import traceback
from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import MissingNameError
from nkilib.simulator.api.stand_ins import MODULES
from nkilib.simulator.terms.other_names import OTHER_NAMES, REMOVED
from tests.simulator.kernels import execute, tile

MODULES_BY_NAME = {"nki": nki, "nki.isa": nisa, "nki.language": nl}


def test_types_and_ranges() -> None:
    older: Any = nl
    assert older.bool is nl.bool_
    assert older.range is range
    assert isinstance(nl.float32, older.dtype)
    assert older.tensor is nl.NkiTensor


def test_nki_dtype_is_an_annotation_and_a_module_of_types() -> None:
    older: Any = nki
    assert older.dtype is MODULES["nki.dtype"]
    assert older.dtype.bfloat16 is nl.bfloat16
    assert set(older.dtype.__all__) >= {"float32", "int8", "float8_e4m3", "bool"}


def test_nki_typing_annotates_parameters() -> None:
    """A tensor with or without its expected shape, as the migration guide writes it; the launch goes on as without."""
    older: Any = nki
    nt: Any = older.typing

    def add_one(x: nt.tensor[4, 3], y: nt.tensor) -> nt.tensor:
        nisa.tensor_scalar(dst=(tile := nl.load(x)), data=tile, op0=nl.add, operand0=1.0)
        nl.store(y, value=tile)
        return y

    add_one.__annotations__["x"] = nt.tensor[4, 3]  # annotations are text in this file
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert (nki.jit(add_one)(x, np.zeros_like(x)) == x + 1).all()
    assert nt.mutable_tensor is nl.NkiTensor


def test_nki_isa_constants_has_the_enumerations() -> None:
    older: Any = nisa
    for name in older.constants.__all__:
        assert getattr(older.constants, name) is getattr(nisa, name)
    assert {"dge_mode", "oob_mode", "reduce_cmd", "engine"} <= set(older.constants.__all__)


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (nl, "arange", "nki.language.arange was removed from NKI before release 0.6; use slices, nl.ds(start, size)"),
        (nl, "mgrid", "nki.language.mgrid was removed from NKI before release 0.6; use slices"),
        (nl, "par_dim", "nki.language.par_dim was removed from NKI before release 0.6; use a shape whose first"),
        (
            nisa,
            "tensor_copy_dynamic_src",
            "nki.isa.tensor_copy_dynamic_src was removed from NKI before release 0.6; use",
        ),
        (nl, "no_such_name", "module 'nki.language' has no attribute 'no_such_name'"),
        (nisa, "no_such_name", "module 'nki.isa' has no attribute 'no_such_name'"),
        (nki, "no_such_name", "module 'nki' has no attribute 'no_such_name'"),
    ],
)
def test_a_name_that_is_gone(module: Any, name: str, message: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("module", "name", "likely"),
    [
        (nisa, "tensor_tenser", "did you mean nisa.tensor_tensor?"),
        (nisa, "dma_cpoy", "did you mean nisa.dma_copy?"),
        (nl, "Float32", "did you mean nl.float32?"),
        (nki, "jti", "did you mean nki.jit?"),
        (nl, "tensor_tensor", "it is nisa.tensor_tensor"),
        (nisa, "add", "it is nl.add"),
        (nl, "all_reduce", "it is nki.collectives.all_reduce"),
        (nki, "softmax", "it is nl.softmax"),
        (nl, "tensor_tensr", "did you mean nisa.tensor_tensor?"),
    ],
)
def test_a_name_that_is_misspelt_or_of_another_module(module: Any, name: str, likely: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    called = {nki: "nki", nisa: "nki.isa", nl: "nki.language"}[module]
    assert str(caught.value) == f"module {called!r} has no attribute {name!r}; {likely}"


@pytest.mark.parametrize(
    ("module", "name", "use"),
    [
        (nl, "sub", "nl.subtract"),
        (nl, "mul", "nl.multiply"),
        (nl, "absolute", "nl.abs"),
        (nl, "fp32", "nl.float32"),
        (nl, "float64", "nl.float32; the hardware has no float64"),
        (nisa, "tensor_add", "nisa.tensor_tensor(dst, data1, data2, op=nl.add)"),
        (nisa, "load", "nisa.dma_copy between HBM and SBUF"),  # not nl.load: whoever writes nisa wants instructions
    ],
)
def test_a_name_of_another_library_is_answered_with_a_statement(module: Any, name: str, use: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(module, name)
    called = {nisa: "nki.isa", nl: "nki.language"}[module]
    assert str(caught.value) == f"module {called!r} has no attribute {name!r}; use {use}"


OTHERS = [
    pytest.param(MODULES_BY_NAME[module], name, use, id=f"{module}.{name}")
    for module, names in OTHER_NAMES.items()
    for name, use in names.items()
]


@pytest.mark.parametrize(("module", "name", "use"), OTHERS)
def test_what_a_name_of_another_library_is_answered_with_exists(module: Any, name: str, use: str) -> None:
    assert not hasattr(module, name), "NKI has this name"
    named = re.findall(r"\b(nl|nisa)\.(\w+)", use)
    assert named or use.startswith("the method of the tensor")
    for home, item in named:
        assert item in {"nl": nl, "nisa": nisa}[home].__all__
    for method in re.findall(r"\bx\.(\w+)", use) + re.findall(r"(\w+)\(vector_offset", use):
        assert hasattr(nl.NkiTensor, method)


def test_the_calls_that_are_recommended_run() -> None:
    calls = []

    def kernel() -> None:
        x, y, dst = tile(2, 3, value=-4), tile(2, 3, value=3), nl.ndarray((2, 3), nl.float32)
        names = {"nl": nl, "nisa": nisa, "x": x, "y": y, "value": 1, "low": 0, "high": 1, "axis": 1}
        names |= {"dst": dst, "data": x, "data1": x, "data2": y}
        for _, use in (entry for names_of_module in OTHER_NAMES.values() for entry in names_of_module.items()):
            if use.startswith(("nl.", "nisa.")) and use.endswith(")") and not re.search(r", or |ap\(", use):
                names["dst"] = nl.ndarray((2, 1), nl.float32) if "tensor_reduce" in use else dst
                eval(use, names)
                calls.append(use)

    execute(kernel)
    assert {"nl.floor(nl.divide(x, y))", "nisa.memset(dst, value=0)"} <= set(calls)


REMOVED_NAMES = [
    pytest.param(nki.compiler if module == "nki.compiler" else MODULES_BY_NAME[module], name, use, id=name)
    for module, names in REMOVED.items()
    for name, use in names.items()
]


@pytest.mark.parametrize(("module", "name", "use"), REMOVED_NAMES)
def test_a_removed_name_is_answered_with_one_that_exists(module: Any, name: str, use: str) -> None:
    with pytest.raises(MissingNameError) as caught:
        getattr(module, name)
    assert str(caught.value).endswith(f".{name} was removed from NKI before release 0.6; use {use}")
    homes = {"nl": nl, "nisa": nisa, "nki": nki, "nki.compiler": nki.compiler, "nki.collectives": nki.collectives}
    for home, item in re.findall(r"\b(nl|nisa|nki(?:\.compiler|\.collectives)?)\.(\w+)(?!\w|\.)", use):
        assert item in homes[home].__all__ or item == "meta"


def test_a_name_is_suggested_once_and_the_error_has_the_line_of_the_kernel() -> None:
    older: Any = nisa

    def kernel() -> None:
        older.tensor_reducee()

    with pytest.raises(MissingNameError) as caught:
        execute(kernel)
    text = "".join(traceback.format_exception_only(caught.value))
    assert text.startswith(f"nkilib.simulator.MissingNameError: {__file__}:{kernel.__code__.co_firstlineno + 1}: ")
    assert text.endswith("no attribute 'tensor_reducee'; did you mean nisa.tensor_reduce?\n")


@pytest.mark.parametrize("name", ["no_such_name", "_private", "__path__"])
def test_nothing_is_guessed_for_what_is_like_no_name(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(nisa, name)
    assert str(caught.value) == f"module 'nki.isa' has no attribute {name!r}"


def test_older_names_are_no_public_names() -> None:
    for module in (nki, nisa, nl):
        assert not {"bool", "range", "dtype", "typing", "constants", "tensor"} & set(module.__all__)
