# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.measurements`: its split is the computed one, its kernels are right, and the docs agree."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.measurements import __main__ as command
from benchmarks.measurements.kernels import (
    add_in_blocks,
    add_in_columns,
    convolution,
    fused_attention,
    loads,
    nearest_centroids,
    product_with_gelu,
    silu,
    silu_by_parts,
    transpose,
    unfused_attention,
)
from benchmarks.measurements.modelled import Found, Model, goals, recorded, summary
from benchmarks.measurements.page import BEFORE, NOW, PAGES, SOFTWARE, rewritten
from benchmarks.measurements.probes import PROBES, SCALAR, TRANSFERS, VECTOR, Probe, compared, factors
from benchmarks.measurements.sources import SourceError, Sources
from benchmarks.measurements.table import CHECK, FIT, Measurement, OwnKernel, PublicKernel, half_of, measurements
from nkilib.simulator import AS_ISSUED

ROWS = measurements()
RNG = np.random.default_rng(0)
# Kernels of ours that take some milliseconds.
QUICK = [row for row in ROWS if isinstance(row.kernel, OwnKernel) and row.in_base_units < 300]


def _row(**changed: object) -> Measurement:
    plain = {"section": "", "hardware": "trn2", "cores": 1, "dtype": "float32", "measured": 100.0, "unit": "us"}
    return Measurement(**{"source": "s", "row": "r", "commit": "", "doubts": "", "half": FIT} | plain | changed)  # type: ignore[arg-type]


# The table.


def test_the_halves_are_the_computed_ones() -> None:
    for row in ROWS:
        digest = hashlib.sha256(f"{row.source}|{row.row}".encode()).digest()
        assert row.half == half_of(row.source, row.row) == ("check" if digest[-1] % 2 else "fit"), row.name


def test_the_table_is_large_enough_and_names_its_rows_once() -> None:
    assert max(Counter(row.name for row in ROWS).values()) == 1
    assert sum(not row.is_ratio for row in ROWS) >= 36
    assert {row.half for row in ROWS if row.is_ratio} == {row.half for row in ROWS if not row.is_ratio} == {FIT, CHECK}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_whole(row: Measurement) -> None:
    assert row.measured > 0 and row.doubts and row.section and row.unit in ("us", "ms", "ratio")
    by_name = {other.name: other for other in ROWS}
    if row.is_ratio:
        slow, fast = (by_name[f"{row.source}|{name}"] for name in (row.baseline, row.optimised))
        assert row.measured == round(slow.in_base_units / fast.in_base_units, 3) > 1
    else:
        assert row.kernel is not None and row.calls
        assert not isinstance(row.kernel, PublicKernel) or len(row.kernel.commit) == 40 or row.kernel.commit == "HEAD"


# The kernels.


@pytest.mark.parametrize("kernel", [fused_attention, unfused_attention])
def test_attention(kernel: object) -> None:
    q, k, v = (RNG.standard_normal((128, 512)).astype(np.float32) / scale for scale in (8, 1, 1))
    scores = q.astype(float).T @ k
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ v.astype(float).T
    np.testing.assert_allclose(kernel(q, k, v), expected, atol=2e-5)  # type: ignore[operator]


def test_the_product_with_gelu() -> None:
    lhs_t, rhs = (RNG.standard_normal((256, columns)).astype(np.float32) for columns in (128, 512))
    bias = RNG.standard_normal((1, 512)).astype(np.float32)
    x = lhs_t.astype(float).T @ rhs + bias
    from math import erf

    expected = x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2
    np.testing.assert_allclose(product_with_gelu(lhs_t, rhs, bias), expected, atol=1e-3)


def test_the_convolution() -> None:
    x = RNG.standard_normal((256, 5, 7)).astype(np.float32)
    weights = RNG.standard_normal((128, 256, 3, 3)).astype(np.float32)
    bias = RNG.standard_normal((128, 1)).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(float), (3, 3), axis=(1, 2))
    expected = np.einsum("chwij,ocij->ohw", windows, weights) + bias[:, :, None]
    np.testing.assert_allclose(convolution(x, weights, bias), expected, atol=1e-3)


def test_the_sums_and_the_transpose() -> None:
    a, b = (RNG.standard_normal((256, 1)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(add_in_columns(a, b, 128), a + b)
    a, b = (RNG.standard_normal((128, 6)).astype(np.float32) for _ in range(2))
    np.testing.assert_array_equal(add_in_blocks(a, b, 2), a + b)
    a = RNG.standard_normal((128, 256)).astype(np.float32)
    np.testing.assert_array_equal(transpose(a), a.T)


def test_silu() -> None:
    x = RNG.standard_normal((128, 16)).astype(np.float32)
    expected = x / (1 + np.exp(-x.astype(float)))
    np.testing.assert_allclose(silu(x, 8), expected, atol=2e-6)
    np.testing.assert_allclose(silu_by_parts(x, 8, 4), expected, atol=2e-6)


@pytest.mark.parametrize("cores", [1, 2])
def test_the_nearest_centroids(cores: int) -> None:
    import ml_dtypes

    points, centroids = (RNG.standard_normal((256, number)).astype(ml_dtypes.bfloat16) for number in (512, 1024))
    exact = centroids.astype(float)
    squares = (exact**2).sum(axis=0)
    distances = squares - 2 * points.astype(float).T @ exact
    result = nearest_centroids[cores](points, centroids, squares[None].astype(np.float32))
    # Float32 sums of 256 products: the distance found is the least one but for their rounding.
    chosen = np.take_along_axis(distances, np.asarray(result), axis=1)
    np.testing.assert_allclose(chosen, distances.min(axis=1, keepdims=True), atol=1e-3)


# What the model says.


@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.name)
def test_the_recorded_figures_are_those_of_the_model(row: Measurement) -> None:
    (result,) = [record for record in recorded(NOW) if record.measurement == row]
    assert Model().figure(row) == pytest.approx(result.modelled, rel=1e-5)


@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.name)
def test_the_older_readings_restore_the_older_figures(row: Measurement) -> None:
    (result,) = [record for record in recorded(BEFORE) if record.measurement == row]
    assert Model(parameters=AS_ISSUED, with_launches=False).figure(row) == pytest.approx(result.modelled, rel=1e-6)


def test_every_row_is_recorded() -> None:
    for name in (BEFORE, NOW):
        assert [record.measurement for record in recorded(name)] == list(ROWS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pages_show_what_is_recorded(page: Path) -> None:
    assert rewritten(page) == page.read_text(encoding="utf-8")


def test_a_ratio_is_that_of_its_rows() -> None:
    row = next(row for row in ROWS if row.row == "unfused to fused attention d=128, S=1024 bf16")
    of = {record.measurement.name: record.modelled for record in recorded(NOW)}
    slow, fast = (of[f"{row.source}|{name}"] for name in (row.baseline, row.optimised))
    assert Model().figure(row) == pytest.approx(slow / fast, rel=1e-5)


def test_the_summary() -> None:
    result = [Found(_row(), modelled) for modelled in (50.0, 110.0, 130.0, 100.0)]
    of = summary(result)
    assert (of.rows, of.worst) == (4, result[0])
    assert of.median == pytest.approx(1.2) and of.median_ratio == pytest.approx(1.05) and of.close == 0.75
    with pytest.raises(ValueError, match="needs at least one row"):
        summary([])


def test_the_goals() -> None:
    times = [Found(_row(), modelled) for modelled in (100.0, 114.0, 116.0)]
    ratios = [Found(_row(unit="ratio", measured=2.0), modelled) for modelled in (2.0, 2.7)]
    assert [goal.is_met for goal in goals(times, ratios)] == [True, True, True, False]
    assert [goal.is_met for goal in goals([Found(_row(), 161.0)], ratios[:1])] == [False, False, False, True]
    assert goals([], []) == []


# Kernels of others.

DOUBLED = """
import nki
import nki.isa as nisa
import nki.language as nl
from .neighbour import size

TIMES = 2

@nki.jit
def doubled(x):
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    for _ in range(TIMES):
        nisa.tensor_scalar(tile, tile, nl.multiply, size)
    nl.store(result, tile)
    return result
"""


WRAPPED = """
from no_such_package.inside import wrap
import nki
import nki.language as nl

SIZE = 1

@nki.jit
def filled(x):
    result = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(result, nl.full(x.shape, SIZE, x.dtype))
    return result

wrapped = wrap(filled)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Sources with a plain copy of one repository."""
    package = tmp_path / "some+one" / "package"
    package.mkdir(parents=True)
    (package / "kernels.py").write_text(DOUBLED, encoding="utf-8")
    (package / "neighbour.py").write_text("size = 2.0\n", encoding="utf-8")
    (package / "of torch.py").write_text("import no_such_module\n", encoding="utf-8")
    (package / "wrapped.py").write_text(WRAPPED, encoding="utf-8")
    return tmp_path


def test_a_kernel_of_others(directory: Path) -> None:
    x = np.ones((128, 4), np.float32)
    wanted = PublicKernel("some/one", "0" * 40, "package/kernels.py", "doubled", package="package")
    with Sources(directory) as sources:
        np.testing.assert_array_equal(sources.kernel(wanted)(x), 4 * x)


def test_a_kernel_with_other_constants_beside_what_is_absent(directory: Path) -> None:
    x = np.ones((128, 4), np.float32)
    wanted = PublicKernel("some/one", "0" * 40, "package/wrapped.py", "wrapped", absent=("no_such_package.inside",))
    with Sources(directory) as sources:
        np.testing.assert_array_equal(sources.kernel(replace(wanted, constants={"SIZE": 3}))(x), 3 * x)
        np.testing.assert_array_equal(sources.kernel(wanted)(x), x)
    assert not [name for name in sys.modules if name.startswith("no_such_package")]


def test_a_kernel_that_cannot_be_had(directory: Path) -> None:
    with Sources(directory) as sources:
        with pytest.raises(SourceError, match=r"git clone https://github.com/no/body .*no\+body"):
            sources.kernel(PublicKernel("no/body", "0" * 40, "kernels.py", "doubled"))
        with pytest.raises(SourceError, match=r"package/of torch.py needs a module that is missing.*no_such_module"):
            sources.kernel(PublicKernel("some/one", "0" * 40, "package/of torch.py", "doubled"))
        with pytest.raises(SourceError, match=r"git -C .* archive"):
            sources.kernel(PublicKernel("some/one", "0" * 40, "absent.py", "doubled"))


# Single instructions and transfers.

EVERY = [probe for probes in PROBES.values() for probe in probes]


def _probe(what: str) -> Probe:
    (probe,) = [probe for probe in EVERY if probe.what == what]
    return probe


def test_a_probe_is_whole_and_named_once() -> None:
    assert max(Counter(probe.what for probe in EVERY).values()) == 1
    for probe in EVERY:
        assert 0 < probe.least <= probe.measured <= probe.most and probe.unit in ("ns", "GB/s") and probe.source


@pytest.mark.parametrize(
    ("what", "before", "now"),
    [
        ("tensor_reduce [128, 128]", (128 + 100) / 1.12, (128 + 40) / 1.12),
        ("tensor_scalar_reduce [128, 2112]", (2112 + 64 + 100) / 1.12, (2112 + 64 + 40) / 1.12),
        ("activation copy [128, 128]", (128 + 100) / 1.4, (128 + 40) / 1.4),
        ("activation exp [128, 512] with the sum, PSUM to bf16", (512 + 64 + 100) / 1.4, (512 + 64 + 40) / 1.4),
        ("load of an activation table", 1280, 1280),
        ("nc_matmul fp32, moving [128, 512]", 4 * 512 / 2.8, 4 * 512 / 2.8),
        ("nc_matmul bf16, other stationary each time, moving [128, 1]", 64 / 2.4, 64 / 2.4),
        ("loads of 128 x 64 KiB, known addresses", 16 * 17, 16 * 17),
        ("loads of 128 x 1 KiB, addresses from registers", 16 * 17, 131072 / 1360),
        ("loads of 32 x 8 KiB, addresses from registers", 16 * 17, 262144 / 1360),
        ("loads of 128 x 16 runs of 512 B", 16 * 512 / 58, 16 * 512 / 58),
    ],
)
def test_figures_of_probes_by_hand(what: str, before: float, now: float) -> None:
    (result,) = compared([_probe(what)])
    assert (result.before, result.now) == pytest.approx((before, now), rel=1e-4)
    assert result.ratios == pytest.approx((before / result.probe.measured, now / result.probe.measured), rel=1e-4)


@pytest.mark.parametrize("probes", [TRANSFERS, VECTOR, SCALAR], ids=["transfers", "Vector", "Scalar"])
def test_the_constants_of_trn1_come_nearer_to_what_was_measured(probes: tuple[Probe, ...]) -> None:
    results = compared(probes)
    before, now = factors(results)
    assert now < before and now <= 1.05
    assert max(abs(row.ratios[1] - 1) for row in results) <= 0.16


@pytest.mark.parametrize("reads_address", [False, True])
@pytest.mark.parametrize(("partitions", "runs"), [(128, 1), (32, 1), (128, 4)])
def test_the_loads_of_the_probe(reads_address: bool, partitions: int, runs: int) -> None:
    weights = RNG.integers(0, 200, (2, 128, 64), dtype=np.uint8)
    index = np.arange(2, dtype=np.int32)[None]
    result = np.asarray(loads(weights, index, 16, partitions, runs, reads_address))
    step = 16 // runs  # of the columns where a chunk's first byte is
    firsts = weights.astype(float)[:, :, 0 : 64 // runs : step].sum(axis=(0, 2))
    np.testing.assert_array_equal(result[:, 0], firsts)


def test_rows_of_trn1_are_recorded_with_both_kinds_of_descriptors() -> None:
    of_trn1 = [row for row in ROWS if row.hardware == "trn1"]
    assert [record.measurement for record in recorded(SOFTWARE)] == of_trn1
    now = {record.measurement.name: record.modelled for record in recorded(NOW)}
    times = [record for record in recorded(SOFTWARE) if not record.measurement.is_ratio]
    assert all(item.modelled >= now[item.measurement.name] for item in times)


def test_the_command_prints_the_probes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--probes"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "loads of 32 x 8 KiB, addresses from registers 196 GB/s 272.0 192.8 1.39 0.98" in shown
    assert "before these figures were known" in shown and "fused attention" not in shown


def test_the_command_models_the_other_descriptors(capsys: pytest.CaptureFixture[str]) -> None:
    """A sum of vectors in small transfers, of which the compiler chooses the descriptors."""
    name = "vector add 25600 fp32, 128x2 a step"
    shown = []
    for option in ([], ["--software"]):
        assert command.main(["--row", name, *option]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] != shown[1] and all("vector add" in text for text in shown)
    assert command.main(["--row", name, "--assume", "software_descriptors=always", "--assume", "issue_cycles=100"]) == 0
    assert capsys.readouterr().out == shown[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--assume", "no_such=1"], "needs a field of ModelParameters and its value, NAME=VALUE, got 'no_such=1'"),
        (["--assume", "issue_cycles"], "NAME=VALUE, got 'issue_cycles'"),
        (["--assume", "issue_cycles=40", "--page"], "--assume is for kernels that are printed only"),
        (["--assume", "issue_cycles=40", "--software"], "not allowed with argument"),
    ],
)
def test_the_command_refuses_assumptions_that_it_cannot_make(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [page.read_bytes() for page in PAGES]
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in " ".join(capsys.readouterr().err.split())
    assert [page.read_bytes() for page in PAGES] == before


# The command.


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--row", "1024 bf16"]) == 0
    shown = capsys.readouterr().out
    assert "fused attention d=128, S=1024 bf16" in shown and "goal 1.15" in shown and "within 1.3, goal all" in shown
    assert "needs --sources" in shown and "attention_cte" in shown
