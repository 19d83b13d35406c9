# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Names of older NKI releases: what public kernels still say works, what was removed says what to use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator.api.aliases import MODULES


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


@pytest.mark.parametrize("name", ["no_such_name", "_private", "__path__"])
def test_nothing_is_guessed_for_what_is_like_no_name(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(nisa, name)
    assert str(caught.value) == f"module 'nki.isa' has no attribute {name!r}"


def test_older_names_are_no_public_names() -> None:
    for module in (nki, nisa, nl):
        assert not {"bool", "range", "dtype", "typing", "constants", "tensor"} & set(module.__all__)
