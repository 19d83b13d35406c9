# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib profile FILE.py:KERNEL``: anybody's kernel, its arguments, and what is said to mistakes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nkilib.cli.main import main
from nkilib.cli.named_kernel import ValueRefusedError, arguments_of, value_of
from nkilib.nki import nisa, nl
from nkilib.simulator import spec

FILE = """
import nki
import nki.isa as nisa
import nki.language as nl
from neighbour import FACTOR


@nki.jit
def scaled(x, out, n, options, dtype=nl.float32, function=nl.exp):
    assert options == {"a": [1, True, None, "x"]}, options
    rows = x.shape[0] // nl.num_programs(0)
    first = nl.program_id(0) * rows if nl.num_programs(0) > 1 else 0
    for column in range(n):
        tile = nl.ndarray((rows, x.shape[1]), dtype)
        nisa.dma_copy(tile, x[first : first + rows])
        nisa.activation(tile, function, tile, scale=FACTOR)
        nisa.dma_copy(out[first : first + rows], tile)
    return out


def plain(x):
    tile = nl.load(x)
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nl.store(result, tile)
    return result


def wrong(x):
    return x.shape[7]


@nki.jit(platform_target="trn3")
def of_trn3(x):
    tile = nl.load(x)
    nisa.exponential(tile, tile)


@nki.jit
def looping(x, flag, work=1):
    count = nl.ndarray((1, 1), nl.int32)
    nisa.dma_copy(count, flag)

    def again(i):
        nisa.dma_copy(nl.ndarray((128, x.shape[1]), x.dtype), x)

    nl.fori_loop(0, nisa.scalar_load(count), again)


NUMBER = 3
"""
ARGUMENTS = ("--arg", "x=bf16[128,64]", "--arg", "out=nl.bfloat16[128, 64]", "--arg", "n=2")
OPTIONS = ("--arg", 'options={"a": [1, true, null, "x"]}')


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = dict(sys.modules)
    (tmp_path / "neighbour.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "someones.py").write_text(FILE)
    yield str(tmp_path / "someones.py")
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in ("nki", "neighbour", "someones", "kernel_file_someones", "broken"):
            del sys.modules[name]


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code and what was printed to both streams."""
    try:
        code = main(("profile", *arguments))
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_decorated_kernel_with_its_arguments(capsys: pytest.CaptureFixture[str], file: str) -> None:
    code, printed, errors = command(capsys, f"{file}:scaled", *ARGUMENTS, *OPTIONS, "--arg", "dtype=nl.bfloat16")
    assert (code, errors) == (0, "")
    assert printed.startswith("scaled on 1 core of trn2: ")
    assert f"{'activation':<28} {2:>8}" in printed
    assert f"{'x':<36} {2 * 128 * 64 * 2:>16,}" in printed


def test_cores_and_target(capsys: pytest.CaptureFixture[str], file: str) -> None:
    where = ("--cores", "2", "--target", "trn3")
    _, printed, _ = command(capsys, f"{file}:scaled", *ARGUMENTS, *OPTIONS, *where)
    assert printed.startswith("scaled on 2 cores of trn3: ")
    _, printed, _ = command(capsys, f"{file}:plain", "--arg", "x=f32[128,4]", "--target", "trn1")
    assert printed.startswith("plain on 1 core of trn1: ")


def test_the_target_of_the_kernel_unless_another_is_given(capsys: pytest.CaptureFixture[str], file: str) -> None:
    _, printed, _ = command(capsys, f"{file}:of_trn3", "--arg", "x=f32[128,4]")
    assert "1 core of trn3" in printed
    code, _, errors = command(capsys, f"{file}:of_trn3", "--arg", "x=f32[128,4]", "--target", "trn2")
    assert code == 1 and "exponential" in errors and "someones.py:" in errors


LOOPING = ("--arg", "x=f32[128,64]", "--arg", "flag=i32[1,1]", "--arg", "work=2")


@pytest.mark.parametrize(
    ("trips", "count"), [(("3",), 3), (("again=5",), 5), (("none",), 0)], ids=["of all loops", "of one", "none"]
)
def test_trips_of_loops(capsys: pytest.CaptureFixture[str], file: str, trips: tuple[str, ...], count: int) -> None:
    """A parameter may be called as one of ``profile`` is: ``work``."""
    inputs = [part for trip in trips for part in ("--trips", trip)]
    code, printed, errors = command(capsys, f"{file}:looping", *LOOPING, *inputs)
    assert (code, errors) == (0, "")
    assert f"{'dma_copy':<28} {1 + count:>8}" in printed


def test_trips_that_are_missing_or_none(capsys: pytest.CaptureFixture[str], file: str) -> None:
    code, _, errors = command(capsys, f"{file}:looping", *LOOPING)
    assert code == 1 and "trips" in errors and "again" in errors
    code, _, errors = command(capsys, f"{file}:looping", *LOOPING, "--trips", "1", "--trips", "again=2")
    assert code == 2 and "--trips must be a number, none, all, or LOOP=N" in errors
    code, _, errors = command(capsys, f"{file}:looping", *LOOPING, "--trips", "all")
    assert code == 1 and "profile: trips='all' asks" in errors and "raised" not in errors


def test_a_module_on_the_path(capsys: pytest.CaptureFixture[str], file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(file).parent))
    code, printed, _ = command(capsys, "someones:plain", "--arg", "x=f32[128,4]")
    assert code == 0 and printed.startswith("plain on 1 core of trn2")


def test_a_kernel_of_the_library_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("logits_hbm=bf16[64,3000]", "targets_hbm=i32[64]", "positions_per_batch=32", "chunk_size=1000")
    options = [part for argument in arguments for part in ("--arg", argument)]
    code, printed, _ = command(capsys, "nkilib.experimental.loss:cross_entropy_forward", *options, "--cores", "2")
    assert code == 0 and printed.startswith("cross_entropy_forward on 2 cores of trn2")


def test_the_extended_kernels_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--positions", "64", "--vocab", "3000", "--extended")
    code, printed, _ = command(capsys, *sizes, "--arg", "logit_softcap=30.0", "--arg", "class_weight_hbm=f32[3000]")
    assert code == 0 and "extended_cross_entropy_forward on 2 cores" in printed and "class_weight_hbm" in printed
    code, _, errors = command(capsys, *sizes, "--arg", "softcap=30.0")
    assert code == 1 and "softcap" in errors


@pytest.mark.parametrize(
    ("kernel", "arguments", "code", "said"),
    [
        pytest.param(
            ":absent",
            (),
            1,
            "has no kernel 'absent'; it has kernels: scaled, of_trn3, looping; functions: plain",
            id="kernel",
        ),
        pytest.param(":NUMBER", (), 1, "'NUMBER' is no kernel but 3; it has kernels: scaled", id="no kernel"),
        pytest.param(":plain", (), 1, "plain needs x as well: add --arg x=...", id="missing"),
        pytest.param(":plain", ("--arg", "y=1"), 1, "plain has no parameter 'y'; it has x", id="unknown"),
        pytest.param(
            ":plain", ("--arg", "x=bf17[4]"), 2, "--arg x: 'bf17' is no type; types are bf16, f16", id="dtype"
        ),
        pytest.param(":plain", ("--arg", "x=bf16[4,-1]"), 2, "a shape is positive integers", id="shape"),
        pytest.param(":plain", ("--arg", "x=bf16[4,8"), 2, "must be a tensor such as bf16[4096,8192]", id="bracket"),
        pytest.param(":plain", ("--arg", "x=text"), 2, '"text" (with its quotes)', id="text without quotes"),
        pytest.param(":plain", ("--arg", "x=nl.float33"), 2, "NKI has no nl.float33", id="name"),
        pytest.param(":plain", ("--arg", "x"), 2, "--arg must be NAME=VALUE", id="no value"),
        pytest.param(":plain", ("--arg", "x=1", "--arg", "x=2"), 2, "--arg x: is given twice", id="twice"),
        pytest.param(":wrong", ("--arg", "x=bf16[4]"), 1, "raised IndexError: tuple index out of range (", id="raises"),
        pytest.param(":plain", ("--arg", "x=bf16[256,4]"), 1, "someones.py:22: ", id="refused by the simulator"),
        pytest.param("", (), 1, "someones.py'; it has kernels: ", id="no name"),
        pytest.param(":plain", ("--vocab", "4"), 2, "--vocab is for this library's kernels; ", id="two forms"),
    ],
)
def test_mistakes(
    capsys: pytest.CaptureFixture[str], file: str, kernel: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    output, printed, errors = command(capsys, f"{file}{kernel}", *arguments)
    assert (output, printed) == (code, "")
    assert "python -m nkilib profile: error: " in errors and said in errors
    assert "Traceback" not in errors


def test_a_file_or_module_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no file 'absent.py'" in command(capsys, "absent.py:kernel")[2]
    assert "there is no module 'absent.module' on the path" in command(capsys, "absent.module:kernel")[2]


def test_a_file_that_cannot_be_imported(capsys: pytest.CaptureFixture[str], file: str) -> None:
    broken = Path(file).with_name("broken.py")
    broken.write_text("import nki\nimport absent_module\n")
    code, _, errors = command(capsys, f"{broken}:kernel")
    assert code == 1 and "No module named 'absent_module'" in errors and "broken.py:2" in errors
    broken.write_text("def kernel(:\n")
    assert "SyntaxError" in command(capsys, f"{broken}:kernel")[2]


def test_options_of_the_extended_kernels_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = command(capsys, "--positions", "64", "--vocab", "3000", "--arg", "label_smoothing=0.1")
    assert code == 2 and "add --extended" in errors


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("-0.5", -0.5),
        ("true", True),
        ("null", None),
        ('"bf16[4]"', "bf16[4]"),
        ('["a", {"b": [1]}]', ["a", {"b": [1]}]),
        ("nl.float32", nl.float32),
        ("nl.exp", nl.exp),
        ("nisa.vector_engine", nisa.vector_engine),
        ("bf16[4096,8192]", spec((4096, 8192), "bfloat16")),
        ("fp16[ 1 , 2 ]", spec((1, 2), "float16")),
        ("int32[7]", spec((7,), "int32")),
        ("float8_e4m3[4,4]", spec((4, 4), "float8_e4m3")),
        (
            '[f32[2], {"w": nl.bfloat16[3]}, nl.float32, 1]',
            [spec((2,), "float32"), {"w": spec((3,), "bfloat16")}, nl.float32, 1],
        ),
    ],
)
def test_values(text: str, value: object) -> None:
    result = value_of(text)
    assert result == value and type(result) is type(value)


def test_a_name_may_hold_an_equals_sign_in_its_value() -> None:
    assert arguments_of(['a="b=c"', "b=1"]) == {"a": "b=c", "b": 1}
    with pytest.raises(ValueRefusedError, match=r"--arg must be NAME=VALUE.*got '2x=1'"):
        arguments_of(["2x=1"])
