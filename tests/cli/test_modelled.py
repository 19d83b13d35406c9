# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`profile` and `tune` of every family: what is modelled is the kernel's launch, as its chooser cuts it up."""

from __future__ import annotations

from typing import Any

import pytest

from nkilib.cli.main import main
from nkilib.cli.modelled.registry import FAMILIES
from nkilib.experimental import loss, softmax
from nkilib.experimental.loss import distillation_backward, distillation_forward
from nkilib.experimental.public_kernels import public_kernels
from nkilib.simulator import profile, spec

N, V = 64, 300
MATRIX, COLUMN, SCALAR = spec((N, V), "bfloat16"), spec((N,), "float32"), spec((1,), "float32")
TARGETS = spec((N,), "int32")
BATCH = (spec((N, 4, V), "bfloat16"), spec((4, 5), "int32"), *[spec((4,), "int32")] * 2)
FURTHER = {
    "ctc_loss": ("--sequences", "4", "--labels", "5"),
    "linear_token_scores": ("--features", "32", "--ids", "5"),
    "linear_distillation": ("--features", "32", "--teacher-features", "48"),
}
HIDDEN = (spec((N, 32), "bfloat16"), spec((V, 32), "bfloat16"), spec((N, 5), "int32"))
PAIR = (*HIDDEN[:2], spec((N, 48), "bfloat16"), spec((V, 48), "bfloat16"))
LAUNCHES: dict[tuple[str, str], tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    ("softmax", "forward"): (softmax.softmax_forward, (MATRIX,), {}),
    ("softmax", "backward"): (softmax.softmax_backward, (MATRIX, MATRIX), {}),
    ("log_softmax", "forward"): (softmax.log_softmax_forward, (MATRIX,), {}),
    ("log_softmax", "backward"): (softmax.log_softmax_backward, (MATRIX, MATRIX), {}),
    ("nll_loss", "forward"): (loss.nll_loss_forward, (MATRIX, TARGETS), {}),
    ("nll_loss", "backward"): (loss.nll_loss_backward, (MATRIX, TARGETS, SCALAR), {"total_weight_hbm": SCALAR}),
    ("kl_div", "forward"): (loss.kl_div_forward, (MATRIX, MATRIX), {}),
    ("kl_div", "backward"): (loss.kl_div_backward, (MATRIX, MATRIX, SCALAR), {}),
    ("gaussian_nll_loss", "forward"): (loss.gaussian_nll_loss_forward, (MATRIX, MATRIX, MATRIX), {}),
    ("huber_loss", "backward"): (loss.huber_loss_backward, (MATRIX, MATRIX, None, SCALAR), {}),
    ("triplet_margin_loss", "forward"): (loss.triplet_margin_loss_forward, (MATRIX, MATRIX, MATRIX), {}),
    ("triplet_margin_loss", "backward"): (
        loss.triplet_margin_loss_backward,
        (MATRIX, MATRIX, MATRIX, spec((2, N), "float32"), SCALAR),
        {},
    ),
    ("cosine_embedding_loss", "forward"): (loss.cosine_embedding_loss_forward, (MATRIX, MATRIX, COLUMN), {}),
    ("cosine_embedding_loss", "backward"): (
        loss.cosine_embedding_loss_backward,
        (MATRIX, MATRIX, spec((3, N), "float32"), SCALAR),
        {},
    ),
    ("multilabel_soft_margin_loss", "forward"): (loss.multilabel_soft_margin_loss_forward, (MATRIX, MATRIX), {}),
    ("multi_margin_loss", "backward"): (loss.multi_margin_loss_backward, (MATRIX, TARGETS, SCALAR), {}),
    ("multilabel_margin_loss", "forward"): (
        loss.multilabel_margin_loss_forward,
        (MATRIX, spec((N, V), "int32")),
        {},
    ),
    ("ctc_loss", "forward"): (loss.ctc_loss_forward, BATCH, {}),
    ("ctc_loss", "backward"): (
        loss.ctc_loss_backward,
        (*BATCH, spec((4,), "float32"), spec((N, 4, 11), "float32"), SCALAR),
        {},
    ),
    ("linear_token_scores", "forward"): (loss.linear_token_scores_forward, HIDDEN, {}),
    ("linear_token_scores", "backward"): (
        loss.linear_token_scores_backward,
        (*HIDDEN, COLUMN, spec((N, 5), "float32")),
        {},
    ),
    ("linear_distillation", "forward"): (loss.linear_distillation_forward, PAIR, {}),
    ("linear_distillation", "mixture"): (loss.linear_distillation_mixture, (*PAIR, *[COLUMN] * 4), {}),
    ("linear_distillation", "backward"): (loss.linear_distillation_backward, (*PAIR, *[COLUMN] * 6), {}),
    ("distillation", "forward"): (distillation_forward, (MATRIX, MATRIX), {}),
    ("distillation", "backward"): (distillation_backward, (MATRIX, MATRIX, *[COLUMN] * 6), {}),
}
SIZES = ("--positions", str(N), "--vocab", str(V))


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code and what was printed to both streams."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_every_public_kernel_has_a_family() -> None:
    named = {name for family in FAMILIES for name in family.NAMES}
    kernels = {name.removeprefix("extended_") for name in public_kernels()}
    for direction in ("_forward_backward", "_forward", "_backward", "_mixture"):
        kernels = {name.removesuffix(direction) for name in kernels}
    assert kernels == named


@pytest.mark.parametrize(("family", "direction"), LAUNCHES)
def test_the_profile_is_that_of_the_kernel_as_it_is(
    capsys: pytest.CaptureFixture[str], family: str, direction: str
) -> None:
    kernel, tensors, options = LAUNCHES[family, direction]
    asked = (*SIZES, *FURTHER.get(family, ()), "--family", family, "--direction", direction)
    code, printed, errors = command(capsys, "profile", *asked)
    assert (code, errors) == (0, "")
    assert f"{family}_{direction} on 2 cores of trn2: " in printed
    assert printed.endswith(f"{profile(kernel[2], *tensors, **options)}\n")


def test_options_reach_the_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--axis", "first", "--dtype", "float32", "--cores", "1", "--target", "trn3")
    code, printed, _ = command(capsys, "profile", *SIZES, "--family", "softmax", *options)
    assert code == 0 and "softmax_forward on 1 core of trn3: " in printed
    options = ("--columns", "512", "--buffers", "2", "--arg", "log_target=true")
    code, printed, _ = command(capsys, "profile", *SIZES, "--family", "kl_div", *options)
    expected = profile(loss.kl_div_forward[2], MATRIX, MATRIX, log_target=True, columns=512, buffers=2)
    assert (code, printed) == (0, f"columns=512, buffers=2\n{expected}\n")


def test_the_choice_is_that_of_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Jensen-Shannon has more on chip than a Kullback-Leibler divergence."""
    sizes = ("--positions", "8", "--vocab", "9000", "--dtype", "float32", "--family", "distillation")
    logits = spec((8, 9000), "float32")
    asked: tuple[tuple[str, ...], ...] = ((), ("--partitions-per-position", "1"), ("--chunk-size", "500"))
    for options, parts in zip(asked, (32, 1, 1), strict=True):
        chunks = set()
        for beta in (0.0, 0.5):
            code, printed, errors = command(capsys, "profile", *sizes, *options, "--arg", f"beta={beta}")
            assert (code, errors) == (0, "")
            chunks.add(printed.splitlines()[0])
            assert f", partitions_per_position={parts}\n" in printed
            if not options or options[0] != "--chunk-size":
                launch = {"beta": beta, "partitions_per_position": parts}
                assert printed.endswith(f"{profile(distillation_forward[2], logits, logits, **launch)}\n")
        assert len(chunks) == (2 if options == asked[1] else 1)


@pytest.mark.parametrize(
    ("family", "sizes", "chooser"),
    [
        ("softmax", ("--chunk-size", "100", "150"), "choose_softmax_tiling"),
        ("linear_token_scores", ("--features", "32", "--class-block", "128", "256"), "choose_linear_tiling"),
        ("kl_div", ("--columns", "512", "--buffers", "2"), "the kernel"),
        ("cosine_embedding_loss", ("--each", "1"), "the kernel"),
        ("multi_margin_loss", ("--chunk-size", "128", "256"), "choose_multi_margin_tiling"),
        ("distillation", ("--chunk-size", "128", "300"), "choose_distillation_tiling"),
        (
            "linear_distillation",
            (*FURTHER["linear_distillation"], "--class-block", "128", "256"),
            "choose_linear_distillation_tiling",
        ),
    ],
)
def test_tune_lists_what_was_asked_for_and_the_choice(
    capsys: pytest.CaptureFixture[str], family: str, sizes: tuple[str, ...], chooser: str
) -> None:
    code, printed, errors = command(capsys, "tune", *SIZES, "--family", family, *sizes)
    assert (code, errors) == (0, "")
    lines = printed.splitlines()
    assert lines[0] == f"{family}_forward on 2 cores of trn2: modelled, not measured"
    assert sum(line.endswith(f"  {chooser}") for line in lines) == 1


def test_nll_loss_streams_its_input_or_gathers(capsys: pytest.CaptureFixture[str]) -> None:
    for classes, is_streamed, taken in (("4", "True", 2), ("300", "False", 1)):
        sizes = ("--positions", "20000", "--vocab", classes, "--family", "nll_loss")
        code, printed, errors = command(capsys, "tune", *sizes)
        assert (code, errors) == (0, "")
        first, header, *rows, last = printed.splitlines()
        assert first == "nll_loss_forward on 2 cores of trn2: modelled, not measured"
        assert header.split() == ["streamed", "us", "times", "bound"]
        assert last == f"{taken} tilings modelled, {2 - taken} not accepted by the kernel"
        assert rows[0].split()[0] == is_streamed and rows[0].endswith("  the default")
    sizes = ("--positions", "20000", "--vocab", "4", "--family", "nll_loss")
    code, printed, errors = command(capsys, "profile", *sizes, "--arg", "streamed=false")
    arguments = spec((20000, 4), "bfloat16"), spec((20000,), "int32")
    expected = profile(loss.nll_loss_forward[2], *arguments, streamed=False)
    assert (code, printed, errors) == (0, f"streamed=False\n{expected}\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--family", "softmax", "--extended"), "argument --extended: is for kernels without --features and --family"),
        (("--axis", "first"), "argument --axis: is for kernels with --family softmax or log_softmax"),
        (
            ("--family", "kl_div", "--chunk-size", "9"),
            "argument --chunk-size: is for kernels without --features and --family",
        ),
        (("--family", "linear_cross_entropy"), "argument --features: is required for linear_cross_entropy"),
        (
            ("--family", "softmax", "--direction", "forward_backward"),
            "forward_backward is for linear cross-entropy only",
        ),
        (("--family", "softmax", "--direction", "mixture"), "mixture is for distillation from hidden states only"),
        (("--features", "32", "--direction", "mixture"), "mixture is for distillation from hidden states only"),
        (("--features", "32", "--teacher-features", "48"), "is for kernels with --family linear_distillation"),
        (("--family", "linear_distillation", "--features", "32"), "argument --teacher-features: is required"),
    ],
)
@pytest.mark.parametrize("name", ["profile", "tune"])
def test_mistakes(capsys: pytest.CaptureFixture[str], name: str, arguments: tuple[str, ...], said: str) -> None:
    code, printed, errors = command(capsys, name, *SIZES, *arguments)
    assert (code, printed) == (2, "")
    assert said in errors
