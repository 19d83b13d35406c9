# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The demo in its short form, the kernel that calls ours, and the page on the examples."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
from typing import Any

import numpy as np
import pytest

from examples import _arithmetic, _measure, call_from_nki, demo
from examples._display import EXAMPLE_WIDTH, make_console, rounded_time, takes
from nkilib.nki import nl
from tests.fresh_python import CHECKOUT, run_fresh


def test_quick_demo_shows_both_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--quick"]) == 0
    shown = capsys.readouterr().out
    assert "simulated, not hardware" in shown and takes(1.0) in shown
    for model, vocabulary in (("Llama-2", 32000), ("GPT-2", 50257)):
        assert re.search(rf"{model}: N = \d+, V = {vocabulary}", shown)
        for dtype in ("bf16", "fp32"):
            assert len(re.findall(rf"{model} +{dtype}", shown)) == 3, "a row in each of the three tables"
    assert re.search(r"step +1 +loss \d\.\d{6} +float64 \d\.\d{6}", shown)
    assert "whole text, after training" in shown
    assert "All results agree with float64" in shown


def test_a_log_has_neither_escape_codes_nor_long_lines(capsys: pytest.CaptureFixture[str]) -> None:
    demo.main(["--quick"])
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\r" not in shown
    assert max(map(len, shown.splitlines())) <= EXAMPLE_WIDTH


@pytest.mark.parametrize(("columns", "of_example", "of_benchmark"), [(60, 60, 60), (200, EXAMPLE_WIDTH, 200)])
def test_the_lines_of_an_example_are_short_on_a_wide_terminal_too(
    columns: int, of_example: int, of_benchmark: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert (make_console(EXAMPLE_WIDTH).width, make_console().width) == (of_example, of_benchmark)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.3, "1 s"), (2.4, "2 s"), (4.6, "5 s"), (17.6, "20 s"), (89, "90 s"), (100, "2 minutes")]
)
def test_times_are_rounded(seconds: float, said: str) -> None:
    assert takes(seconds) == f"Takes about {said} on two cores without other load."


def test_quick_cases_measure_what_the_long_ones_do() -> None:
    long, quick = demo.cases(quick=False), demo.cases(quick=True)
    assert [(c.name, c.vocabulary, c.dtype_name) for c in long] == [(c.name, c.vocabulary, c.dtype_name) for c in quick]
    assert {(c.positions, c.vocabulary) for c in long} == {(128, 32000), (32, 50257)}


def test_measurement_counts_work_and_traffic() -> None:
    case = _measure.Case("test", 6, 500, 2, 200, "bf16", nl.bfloat16)
    assert case.logits_bytes == 6 * 500 * 2
    measured = _measure.measure(case)
    for work in (measured.forward, measured.backward):
        assert case.logits_bytes <= work.hbm_read < 1.1 * case.logits_bytes
        assert work.instructions["dma"] > 0 and work.instructions["scalar"] > 0
    assert case.logits_bytes <= measured.backward.hbm_written < 1.1 * case.logits_bytes
    assert measured.forward.hbm_written == 6 * (2 + 4), "a bf16 loss and a float32 log-sum-exp for each position"
    assert 0.0 < measured.loss.of_bound <= 1.0 and 0.0 < measured.gradient.of_bound <= 1.0


class Changed:
    """A kernel whose results are changed by ``change``."""

    def __init__(self, kernel: Any, change: Any) -> None:
        self._kernel = kernel
        self._change = change

    def __getitem__(self, cores: int) -> Any:
        return lambda *arguments, **options: self._change(self._kernel[cores](*arguments, **options))


@pytest.mark.parametrize(
    ("module", "name", "change"),
    [
        (_measure, "cross_entropy_forward", lambda results: (results[0] * 1.01, results[1])),
        (_measure, "cross_entropy_forward", lambda results: (results[0], results[1] + np.float32(1e-3))),
        (_measure, "cross_entropy_backward", lambda gradient: -gradient),
        (_arithmetic, "cross_entropy_backward", lambda gradient: np.multiply(gradient, -1, out=gradient)),
        (_arithmetic, "cross_entropy_forward", lambda results: (results[0] + np.float32(1e-3), results[1])),
    ],
    ids=["loss", "log-sum-exp", "gradient", "gradient in training", "loss in training"],
)
def test_the_demo_notices_wrong_kernels(
    module: Any, name: str, change: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, name, Changed(getattr(module, name), change))
    assert demo.main(["--quick"]) == 1
    assert "Results differ from float64" in capsys.readouterr().out


def test_without_the_simulator_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SIMULATED", False)
    assert demo.main(["--quick"]) == 2
    assert "set NKILIB_BACKEND=simulator" in " ".join(capsys.readouterr().out.split())


def test_help_and_a_bad_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.main(["--help"])
    assert ended.value.code == 0
    assert "--quick" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        demo.main(["--passes", "0"])
    assert ended.value.code == 2
    assert "--passes must be at least 1, got 0" in capsys.readouterr().err


def test_the_demo_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from examples import demo; sys.exit(demo.main(['--quick']))"
    outcome = run_fresh(code)
    assert outcome.error == "" and "All results agree with float64" in outcome.output


SMALL = ["--width", "5", "--positions", "3"]


@pytest.mark.parametrize("vocabulary", [2, 512, 700, 9000])
def test_it_agrees_with_numpy(vocabulary: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_from_nki.main([*SMALL, "--vocabulary", str(vocabulary)]) == 0
    shown = capsys.readouterr().out
    assert f"weight [5, {vocabulary}]" in shown and "simulator" in shown
    assert "The results agree with float64." in shown


@pytest.mark.parametrize("wrong", [0, 1], ids=["loss", "gradient"])
def test_it_notices_wrong_results(
    wrong: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = call_from_nki.output_layer_loss

    def changed(*arguments: np.ndarray) -> Any:
        results = list(right(*arguments))
        results[wrong] = results[wrong] * np.float32(1.001)
        return results

    monkeypatch.setattr(call_from_nki, "output_layer_loss", changed)
    assert call_from_nki.main([*SMALL, "--vocabulary", "600"]) == 1
    assert "The results differ." in capsys.readouterr().out


def test_help_says_what_each_size_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_from_nki.main(["--help"])
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for meaning in ("width of the model, 1 to 128", "words to predict, 1 to 128", "words to choose from, 2 to 524288"):
        assert f"N {meaning} (default " in shown


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 129, "must be from 1 to 128, got 129: a matrix product takes no other"),
        ("positions", 0, "must be from 1 to 128, got 0: a matrix product takes no other"),
        ("vocabulary", 1, "must be from 2 to 524288, got 1: one shows nothing"),
        (
            "vocabulary",
            2**30,
            "must be from 2 to 524288, got 1073741824: one shows nothing, and more take 3 GB of memory",
        ),
    ],
)
def test_a_size_out_of_bounds(name: str, value: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_from_nki.main([f"--{name}", str(value)])
    assert ended.value.code == 2
    assert f"--{name} {message}" in capsys.readouterr().err


PAGE = (CHECKOUT / "examples" / "README.md").read_text(encoding="utf-8")
# `python -m examples.demo --quick`, `torchrun --nproc_per_node 2 -m examples.vocab_parallel`
COMMANDS = [match.group(0) for match in re.finditer(r"(?:python|torchrun) [^\n`|]*?-m examples\.[^\n`|]*", PAGE)]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_example_takes_the_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(command)
    module = words.index("-m") + 1
    example = importlib.import_module(words[module])
    # It leaves with an error for what it does not take.
    assert example.parse_arguments(words[module + 1 :]) is not None


@pytest.mark.parametrize("command", [command for command in COMMANDS if f"| `{command}` |" in PAGE])
def test_the_page_has_the_time_that_an_example_says(command: str) -> None:
    words = shlex.split(command)
    module = words.index("-m") + 1
    example = importlib.import_module(words[module])
    options = example.parse_arguments(words[module + 1 :])
    only_steps = "steps" in inspect.signature(example.seconds_of).parameters
    seconds = example.seconds_of(options.steps if only_steps else options)
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{command}` |"))
    assert row.split("|")[-2].strip() == rounded_time(seconds)


def test_every_example_is_on_the_page() -> None:
    examples = {path.stem for path in (CHECKOUT / "examples").glob("[!_]*.py")}
    assert examples == {re.search(r"examples\.(\w+)", command).group(1) for command in COMMANDS}  # type: ignore[union-attr]


WITHOUT_RICH = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "rich" else find_spec(name, *rest)
try:
    import examples
except ModuleNotFoundError as error:
    print(error)
"""


def test_without_rich() -> None:
    assert run_fresh(WITHOUT_RICH).output == (
        "examples: the programs print with rich, which is not installed; pip install '.[cli]' in the checkout"
    )
