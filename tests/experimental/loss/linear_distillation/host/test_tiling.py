# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tilings that are chosen for launches of two models: they fit, and are about as fast as any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nkilib.core.plan_limits import PlanLimits, shrunk
from nkilib.experimental.loss import linear_distillation_forward
from nkilib.experimental.loss.linear.launch import SBUF_BYTES, LinearTiling
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import (
    ModelNeeds,
    PairForwardSizes,
    PairNeeds,
    StreamSizes,
)
from nkilib.experimental.loss.linear_distillation.host.tiling import choose_linear_distillation_tiling
from nkilib.nki import nl
from nkilib.simulator import profile, spec

MODELS = st.builds(ModelNeeds, bias=st.booleans(), softcap=st.booleans(), scale=st.booleans())
NEEDS = st.builds(
    PairNeeds, student=MODELS, teacher=MODELS, reverse=st.booleans(), target=st.booleans(), ratio=st.booleans()
)


def chosen(positions: int, student: int, teacher: int, classes: int, **options: Any) -> LinearTiling:
    """The tiling of a forward in bfloat16."""
    return choose_linear_distillation_tiling(positions, student, teacher, classes, "bfloat16", "forward", **options)


@settings(max_examples=60)
@given(
    positions=st.integers(1, 9000),
    features=st.tuples(st.integers(16, 5000), st.integers(16, 9000)),
    classes=st.integers(1, 200_000),
    cores=st.sampled_from((1, 2)),
    needs=NEEDS,
)
@example(positions=1, features=(4737, 4993), classes=1, cores=1, needs=PairNeeds())
def test_what_is_chosen_for_all_options_fits_with_any(
    positions: int, features: tuple[int, int], classes: int, cores: int, needs: PairNeeds
) -> None:
    tiling = chosen(positions, *features, classes, cores=cores, extended=True)
    assert tiling.position_block % 128 == 0 and tiling.class_block in (128, 256, 384, 512)
    student, teacher = (StreamSizes(feature, 2) for feature in features)
    needs = needs.of_products(student.products + teacher.products)
    sizes = PairForwardSizes(positions, classes, student, teacher, cores, needs)
    assert sizes.bytes_of(sizes.position_plan(*tiling).tiles, tiling.class_block) <= SBUF_BYTES["trn2"]


def test_a_launch_takes_what_is_chosen() -> None:
    ones = [np.ones(shape, np.float32) for shape in ((300, 64), (500, 64), (300, 48), (500, 48))]
    tiling = choose_linear_distillation_tiling(300, 64, 48, 500, nl.float32, "forward", extended=True)
    result = linear_distillation_forward[2](*ones, temperature=2.0, **tiling._asdict())
    np.testing.assert_array_equal(result[0], linear_distillation_forward[2](*ones, temperature=2.0)[0])


def test_types_and_layouts_take_room() -> None:
    """An operand that is cast on its way takes room, but W in [D, V] takes none."""
    plain = chosen(2048, 2048, 4096, 50_000)
    wide = choose_linear_distillation_tiling(2048, 2048, 4096, 50_000, "float32", "forward")
    assert wide.position_block * wide.class_block < plain.position_block * plain.class_block
    teacher = chosen(2048, 2048, 4096, 50_000, teacher_dtype="float32")
    assert teacher.position_block * teacher.class_block < plain.position_block * plain.class_block
    cast = {"student_weight_dtype": "float32", "teacher_weight_dtype": "float32"}
    layouts = {"student_weight_layout": "dv", "teacher_weight_layout": "dv"}
    with shrunk(PlanLimits(sbuf_bytes=100_000)):
        staged, copied = chosen(2048, 512, 512, 50_000, **cast), chosen(2048, 512, 512, 50_000, **cast, **layouts)
    assert staged.position_block < copied.position_block


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_positions": 0}, "num_positions must be at least 1, got 0; launch nothing for empty operands"),
        ({"teacher_features": 8}, "teacher_features must be from 16 to 16384, got 8"),
        ({"vocab_size": 2**25}, "vocab_size must be from 1 to 16777216, got 33554432"),
        ({"dtype": "int32"}, "dtype must be one of bfloat16, float16, float32, got 'int32'"),
        ({"teacher_dtype": "int32"}, "teacher_dtype must be one of bfloat16, float16, float32, got 'int32'"),
        ({"cores": 3}, "cores must be one of 1, 2, got 3"),
        ({"target": "trn1"}, "target must be one of trn2, trn3, got 'trn1'"),
        ({"student_weight_layout": "VD"}, "student_weight_layout must be one of vd, dv, got 'VD'"),
        ({"beta": 2.0}, "beta must be from 0 to 1, got 2.0"),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    options = {"num_positions": 128, "student_features": 64, "teacher_features": 64, "vocab_size": 500}
    options |= {"dtype": "bfloat16", "direction": "forward"}
    with pytest.raises(ValueError, match=f"^choose_linear_distillation_tiling: {message}$"):
        choose_linear_distillation_tiling(**{**options, **arguments})
    with pytest.raises(TypeError, match="num_positions"):
        choose_linear_distillation_tiling(**{**options, "num_positions": 1.5})


@pytest.mark.parametrize("sizes", [(1024, 512, 512, 4000), (640, 2048, 4096, 4000)])
def test_the_choice_is_about_as_fast_as_any(sizes: tuple[int, int, int, int]) -> None:
    """Modelled, of a few other tilings."""
    positions, student, teacher, classes = sizes
    tiling = chosen(*sizes)

    def time_us(tiling: LinearTiling) -> float:
        shapes = ((positions, student), (classes, student), (positions, teacher), (classes, teacher))
        operands = [spec(shape, nl.bfloat16) for shape in shapes]
        return float(profile(linear_distillation_forward[2], *operands, **tiling._asdict()).time_us)

    others = [LinearTiling(tiling.position_block // 2 // 128 * 128, tiling.class_block), LinearTiling(512, 256)]
    assert time_us(tiling) <= 1.03 * min(map(time_us, others))
