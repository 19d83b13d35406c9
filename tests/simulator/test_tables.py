# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tables of rules can fail, and what they derive is what they say."""

from __future__ import annotations

from typing import Any

import pytest

from nkilib.nki import nisa, nl

from .kernels import execute
from .made import Hbm, Made, Psum, Sbuf
from .rules import LEFT_OUT, Broken, broken, check_rule, legal
from .sentences import same_partitions

CALL = legal(nisa.reciprocal, Sbuf(2, 2), Sbuf(2, 2))
ROW = broken("partitions", dst=Sbuf(4, 2)).says(same_partitions("dst", "data"))


def test_a_row_is_a_rule() -> None:
    rule = CALL.rule(ROW)
    assert rule.message == (
        "nisa.reciprocal: operands 'dst' and 'data' must have the same number of partitions, got tensor [4, 2] float32 "
        "in sbuf and tensor [2, 2] float32 in sbuf"
    )
    assert (rule.name, rule.target, rule.error) == ("partitions", "trn2", nisa.NkiValidationError)
    check_rule(rule)


@pytest.mark.parametrize(
    ("row", "failure"),
    [
        (broken("another message", dst=Sbuf(4, 2)).says("operands must be alike"), AssertionError),
        (broken("nothing is broken", data=Sbuf(2, 2, value=1)).says("operands must be alike"), pytest.fail.Exception),
        (ROW.fixed(data=Sbuf(3, 2)), nisa.NkiValidationError),
        (ROW.fixed(dst=LEFT_OUT), TypeError),
    ],
    ids=lambda value: value.name if isinstance(value, Broken) else value.__name__,
)
def test_a_row_that_is_not_so_fails(row: Broken, failure: Any) -> None:
    with pytest.raises(failure):
        check_rule(CALL.rule(row))


@pytest.mark.parametrize(
    "made",
    [
        Sbuf(2, 3, 4)[:, 1, ::2],
        Sbuf(64, 2, dtype=nl.bfloat16)[32:64],
        Sbuf(4, 6, dtype=nl.uint8).reshape((4, 2, 3)),
        Psum(2, 3, value=1),
        Hbm(5, 2, dtype=nl.bool_)[1:],
        Hbm(2, 2, value=None, buffer=nl.shared_hbm),
    ],
    ids=str,
)
def test_the_text_of_a_description_is_that_of_its_tensor(made: Made) -> None:
    texts: list[str] = []
    execute(lambda: texts.append(repr(made.make())))
    assert texts == [str(made)]


def test_a_text_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="write it out in the message of the rule"):
        str(Sbuf(2, 3).permute((0, 1)))
