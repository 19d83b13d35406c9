# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.model_figures`: its kernels compute what they should, and the docs show what it finds."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from benchmarks import model_figures
from benchmarks.model_figures import FIGURES, Figure, Row, main, markdown, matmul, rmsnorm_quant, tiled_matmul
from nkilib.nki import nki

DOCS = Path(__file__).parents[2] / "docs" / "evidence" / "model_figures.md"
# Those of large products take seconds.
QUICK = [figure for figure in FIGURES if not figure.what.startswith("matmul")]


@pytest.mark.parametrize("kernel", [matmul, tiled_matmul])
def test_the_products(kernel: object) -> None:
    rng = np.random.default_rng(0)
    lhs_t, rhs = (rng.standard_normal((2048, 1024)).astype(np.float32) for _ in range(2))
    result = nki.jit(kernel)(lhs_t, rhs)
    # 2,048 float32 products of magnitude about 1 a sum.
    np.testing.assert_allclose(result, lhs_t.astype(float).T @ rhs.astype(float), atol=2e-3)


def test_the_normalization() -> None:
    rng = np.random.default_rng(0)
    x = (1 + rng.random((256, 1024))).astype(ml_dtypes.bfloat16)  # positive: the kernel takes a maximum
    gamma = (1 + rng.random((1, 1024))).astype(ml_dtypes.bfloat16)
    quantized, scales = nki.jit(rmsnorm_quant)[2](x, gamma)
    exact = x.astype(float)
    normed = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True)) * gamma.astype(float)
    np.testing.assert_allclose(scales, normed.max(axis=1, keepdims=True) / 240, rtol=2**-8)
    # float8 with 3 bits of fraction, after a bfloat16 with 7.
    np.testing.assert_allclose(quantized.astype(float) * scales, normed, rtol=2**-4 + 2**-7)


@pytest.mark.parametrize("figure", QUICK, ids=lambda figure: figure.what)
def test_the_docs_show_what_the_model_says(figure: Figure) -> None:
    (line,) = markdown([Row(figure, figure.modelled())]).splitlines()[2:]
    assert line in DOCS.read_text(encoding="utf-8").splitlines()


def test_a_row_that_misses_says_so() -> None:
    figure = Figure("x", "us", 100.0, "page", 0.15, lambda: 0.0)
    assert Row(figure, 115.0).is_met and Row(figure, 85.1).is_met
    assert not Row(figure, 115.1).is_met and not Row(figure, 84.9).is_met
    assert "| 0.50 | **missed** 15% |" in markdown([Row(figure, 50.0)])


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(model_figures, "FIGURES", QUICK[:3])
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "modelled, not measured" in shown and "trn2" in shown
    assert "Within the goal: 3 of 3." in shown
    assert main(["--markdown"]) == 0
    assert capsys.readouterr().out.count("\n") == 5
