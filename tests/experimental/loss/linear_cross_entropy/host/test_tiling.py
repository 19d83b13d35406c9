# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of a tiling, and the bytes of HBM that the kernels use.

A choice fits whatever the launch is, and no other one is modelled to be much faster. The use of HBM equals numbers
worked out by hand, no choice uses more than it may, and the memory for well-known models in
docs/reference/linear_cross_entropy_memory.md is what arithmetic says.
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.experimental.loss import LinearTiling, choose_linear_tiling
from nkilib.experimental.loss.linear.launch import SBUF_BYTES, SCRATCH_BYTES
from nkilib.experimental.loss.linear.tiling import backward_bytes
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import (
    LogitsBlocks,
    form_bytes,
    logits_blocks,
    one_launch_bytes,
)
from nkilib.experimental.loss.profiling import profile_linear_launch
from nkilib.nki import nl
from nkilib.simulator import NkiValidationError, spec, using
from tests.fresh_python import CHECKOUT
from tests.torch_types import named_type
from tools.pictures.diagrams import loss_bytes

DIRECTIONS = ("forward", "backward", "forward_backward")
# Of the best tiling of the grid; modelled times are exact, so a choice that became worse is seen at once.
AS_GOOD = 1.03
POSITION_BLOCKS = (512, 1024, 2048, 4096)
CLASS_BLOCKS = {"forward": (256, 384, 512), "backward": (384, 512, 768, 1024, 1536)}

Launch = tuple[int, int, int, str, str]

MIB = 2**20
PAGE = (CHECKOUT / "docs" / "reference" / "linear_cross_entropy_memory.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Memory and sequence length")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| ([\w. -]+) \| (\d+), ([\d,]+) \| (.*) \| ([\d,]+) \|$", SECTION, re.MULTILINE)
OF_KERNELS = dict(re.findall(r"^\| ([\w. -]+) \| (\d+ MiB \| .*) \|$", SECTION, re.MULTILINE))
UNITS = {"MiB": 2**20, "GiB": 2**30}


def every_option(classes: int) -> dict[str, Any]:
    """Return the options that all kernels have."""
    vector = spec((classes,), "float32")
    options = {"label_smoothing": 0.1, "logit_softcap": 30.0, "lse_square_scale": 1e-4}
    return {"bias_hbm": vector, "class_weight_hbm": vector, **options}


def further(positions: int, features: int, classes: int, direction: str) -> dict[str, Any]:
    """Return the options that only the kernel of one direction has."""
    of_positions = spec((positions,), "float32")
    options: dict[str, dict[str, Any]] = {
        "forward": {f"with_{name}": True for name in ("target", "argmax", "entropy", "distance_sum", "log_sum")},
        "backward": {
            "grad_lse_hbm": of_positions,
            "grad_logprob_hbm": of_positions,
            "maximum_hbm": of_positions,
            "log_sum_hbm": of_positions,
            "grad_weight_sum_hbm": spec((classes, features), "float32"),
        },
        "forward_backward": {},
    }
    return options[direction]


@pytest.mark.parametrize(("target", "available"), SBUF_BYTES.items())
def test_the_machines_are_those_of_the_simulator(target: str, available: int) -> None:
    with using(target=target):
        assert nl.tile_size.sbuf_fmax_bytes == available


@settings(max_examples=25)
@given(
    positions=st.integers(1, 65536),
    features=st.integers(16, 16384),
    classes=st.integers(1, 262144),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    direction=st.sampled_from(DIRECTIONS),
    target=st.sampled_from(["trn2", "trn3"]),
    layout=st.sampled_from(["vd", "dv"]),
    cores=st.sampled_from([1, 2]),
    extended=st.booleans(),
)
def test_there_is_a_choice_for_every_launch(
    positions: int,
    features: int,
    classes: int,
    dtype: str,
    direction: str,
    target: str,
    layout: str,
    cores: int,
    extended: bool,
) -> None:
    options: dict[str, Any] = {"target": target, "weight_layout": layout, "cores": cores, "extended": extended}
    chosen = choose_linear_tiling(positions, features, classes, dtype, direction, **options)
    assert chosen.position_block % 128 == 0 < chosen.position_block < positions + 128
    assert chosen.class_block % 128 == 0 < chosen.class_block < classes + 512


@pytest.mark.parametrize("is_extended", [False, True])
@pytest.mark.parametrize("target", ["trn2", pytest.param("trn3", marks=pytest.mark.sweep)])
@pytest.mark.parametrize(("positions", "features", "dtype"), [(1, 16, "bfloat16"), (200, 16384, "float32")])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_choice_fits(
    direction: str, positions: int, features: int, dtype: str, target: str, is_extended: bool
) -> None:
    """Nothing overflows SBUF or PSUM where the kernel runs."""
    classes = 200
    options = {**every_option(classes), **further(positions, features, classes, direction)} if is_extended else {}
    sizes = (positions, features, classes, dtype, direction)
    profiled = profile_linear_launch(*sizes, target=target, **options)
    assert 0 < profiled.sbuf_peak_bytes_per_partition <= SBUF_BYTES[target]


@pytest.mark.sweep
@pytest.mark.parametrize("is_extended", [False, True])
@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("features", [16, 512, 1024, 2048, 4096, 8192, 16384])
@pytest.mark.parametrize("positions", [1, 512, 2048, 4096, 16384])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_choice_fits_at_all_sizes(
    direction: str, positions: int, features: int, dtype: str, layout: str, is_extended: bool
) -> None:
    classes = 6000
    options = {**every_option(classes), **further(positions, features, classes, direction)} if is_extended else {}
    if layout == "dv" and "grad_weight_sum_hbm" in options:
        options["grad_weight_sum_hbm"] = spec((features, classes), "float32")
    sizes = (positions, features, classes, dtype, direction)
    profiled = profile_linear_launch(*sizes, weight_layout=layout, **options)
    assert profiled.sbuf_peak_bytes_per_partition <= SBUF_BYTES["trn2"]


def time_us(launch: Launch, tiling: LinearTiling) -> float | None:
    """The modelled time, or None if the kernel does not take the tiling."""
    try:
        return profile_linear_launch(*launch, tiling).time_us
    except (AssertionError, NkiValidationError):
        return None


def check_choice(launch: Launch) -> None:
    """No tiling of the grid is modelled to be 3% faster."""
    positions, direction = launch[0], launch[4]
    classes = CLASS_BLOCKS.get(direction, CLASS_BLOCKS["backward"])
    blocks = sorted({min(block, -(-positions // 128) * 128) for block in POSITION_BLOCKS})
    times = {LinearTiling(*item): time_us(launch, LinearTiling(*item)) for item in product(blocks, classes)}
    chosen = choose_linear_tiling(*launch)
    result = time_us(launch, chosen)
    assert result is not None
    accepted = {tiling: time for tiling, time in times.items() if time is not None}
    best = min(accepted, key=lambda tiling: accepted[tiling])
    assert result <= AS_GOOD * accepted[best], f"{chosen}: {result:.1f} us; {best}: {accepted[best]:.1f} us"


@pytest.mark.parametrize(
    "launch", [(512, 512, 8192, "bfloat16", "forward"), (256, 512, 8192, "bfloat16", "backward")], ids=str
)
def test_no_tiling_is_modelled_to_be_three_percent_faster(launch: Launch) -> None:
    check_choice(launch)


@pytest.mark.sweep
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("features", [512, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("positions", [128, 512, 1024, 2048])
def test_no_tiling_is_much_faster_at_all_sizes(positions: int, features: int, dtype: str, direction: str) -> None:
    check_choice((positions, features, 16064, dtype, direction))


def test_the_kernels_take_it_by_default() -> None:
    for direction in DIRECTIONS:
        launch = (200, 256, 1500, "bfloat16", direction)
        default = profile_linear_launch(*launch)
        assert default.time_us == profile_linear_launch(*launch, choose_linear_tiling(*launch)).time_us
        other = LinearTiling(128, 128)
        assert other != choose_linear_tiling(*launch)
        assert default.time_us != profile_linear_launch(*launch, other).time_us


@pytest.mark.parametrize("dtype", [nl.bfloat16, np.dtype(ml_dtypes.bfloat16), "torch.bfloat16", "bfloat16"])
def test_a_type_may_be_of_any_library(dtype: Any) -> None:
    expected = choose_linear_tiling(512, 512, 5000, "bfloat16", "backward")
    assert choose_linear_tiling(512, 512, 5000, named_type(dtype), "backward") == expected


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        (
            {"num_positions": 0},
            ValueError,
            "num_positions must be at least 1, got 0; launch nothing for empty operands",
        ),
        ({"num_positions": 2**31}, ValueError, "num_positions must be from 1 to 2147483647, got 2147483648"),
        (
            {"weight_dtype": "int32"},
            ValueError,
            "weight_dtype must be one of bfloat16, float16, float32, got 'int32'",
        ),
        ({"num_features": 15}, ValueError, "num_features must be from 16 to 16384, got 15"),
        ({"vocab_size": 2**24 + 1}, ValueError, "vocab_size must be from 1 to 16777216, got 16777217"),
        ({"vocab_size": 1.5}, TypeError, "vocab_size must be an integer, got 1.5; pass a dimension of operands"),
        ({"dtype": "float64"}, ValueError, "dtype must be one of bfloat16, float16, float32, got 'float64'"),
        ({"direction": "both"}, ValueError, "direction must be one of forward, backward, forward_backward, got 'both'"),
        ({"target": "trn1"}, ValueError, "target must be one of trn2, trn3, got 'trn1'"),
        ({"weight_layout": "VD"}, ValueError, "weight_layout must be one of vd, dv, got 'VD'"),
        ({"cores": 4}, ValueError, "cores must be one of 1, 2, got 4"),
    ],
    ids=str,
)
def test_what_is_out_of_range(changed: dict[str, Any], error: type[Exception], said: str) -> None:
    launch = {"num_positions": 8, "num_features": 64, "vocab_size": 100, "dtype": "bfloat16", "direction": "forward"}
    with pytest.raises(error) as caught:
        choose_linear_tiling(**{**launch, **changed})
    assert str(caught.value) == f"choose_linear_tiling: {said}"


@pytest.mark.parametrize(
    ("sizes", "blocks", "mebibytes"),
    [
        ((2048, 2048, 65536), LogitsBlocks(2048, 1), 32 + 512),
        ((4096, 4096, 131072), LogitsBlocks(4096, 1), 128 + 2048),
        ((8192, 4096, 131072), LogitsBlocks(1024, 8), 256 + 512 + 2048),
        ((4096, 512, 131072), LogitsBlocks(1024, 4), 16 + 512 + 256),
    ],
)
def test_one_launch_by_hand(sizes: tuple[int, int, int], blocks: LogitsBlocks, mebibytes: int) -> None:
    assert logits_blocks(*sizes) == blocks
    assert one_launch_bytes(*sizes) == mebibytes * MIB


def test_the_backward_keeps_sums_of_a_class_block_where_positions_take_several_blocks() -> None:
    assert backward_bytes(4096, 2048, 4096, 768) == 8 * 4096 * 2048
    assert backward_bytes(4097, 2048, 4096, 768) == 8 * 4097 * 2048 + 2 * 8 * 768 * 2048
    assert backward_bytes(4096, 2048, 4096, 768, cores=1) == 4 * 4096 * 2048


def test_one_launch_is_smaller_only_for_few_logits() -> None:
    for sizes, is_smaller in (((2048, 2048, 65536, 4096, 768), False), ((4096, 4096, 100, 2048, 768), True)):
        result = form_bytes(*sizes)
        assert (result.one_launch <= result.two_launches) == is_smaller


@given(
    positions=st.integers(1, 65536),
    features=st.integers(16, 16384),
    classes=st.integers(1, 262144),
    more=st.integers(0, SCRATCH_BYTES),
)
def test_a_scratch_is_never_exceeded(positions: int, features: int, classes: int, more: int) -> None:
    scratch = 128 * 4 * classes + more
    blocks = logits_blocks(positions, features, classes, scratch)
    assert (blocks.number - 1) * blocks.positions < positions <= blocks.number * blocks.positions
    beyond = one_launch_bytes(positions, features, classes, scratch) - 8 * positions * features
    assert beyond <= scratch + 4 * classes * features
    if blocks.number > 1:
        assert blocks.positions % 128 == 0 and 4 * blocks.positions * classes <= scratch
        assert 4 * positions * classes > scratch + 4 * classes * features


def test_the_table_has_rows_and_more_positions_take_no_more() -> None:
    assert len(ROWS) == 6
    assert loss_bytes(2**20, 2880, 201_088) <= loss_bytes(2**17, 2880, 201_088)


def test_each_model_has_a_row_for_logits_and_one_for_kernels() -> None:
    assert len(ROWS) == 6 and list(OF_KERNELS) == [row[0] for row in ROWS]


@pytest.mark.parametrize(("model", "width", "vocabulary", "of_logits", "tokens"), ROWS, ids=[row[0] for row in ROWS])
def test_bytes_of_a_model(model: str, width: str, vocabulary: str, of_logits: str, tokens: str) -> None:
    features, classes = int(width), int(vocabulary.replace(",", ""))
    of_kernels = OF_KERNELS[model].split(" | ")
    expected = [14 * 8192 * classes, *(loss_bytes(2**power, features, classes) for power in (13, 16, 17))]
    for cell, exact in zip([of_logits, *of_kernels], expected, strict=True):
        number, unit = cell.split()
        digits = len(number.partition(".")[2])
        assert f"{exact / UNITS[unit]:.{digits}f}" == number, model
    assert int(tokens.replace(",", "")) == 4 * 2**30 // (14 * classes)
