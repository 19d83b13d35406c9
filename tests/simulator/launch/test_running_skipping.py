# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``simulate(kernel, skip_arithmetic=True)``: what it computes, what it refuses, and that its verdicts are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import nkilib.simulator
from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward, linear_cross_entropy_forward
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import (
    NkiValidationError,
    OutOfRangeError,
    RaceError,
    Uncomputed,
    UncomputedError,
    UninitializedReadError,
    profile,
    simulate,
    spec,
)
from nkilib.simulator.machine.core import current_core
from tests.simulator.kernels import column, load, normal, store, tile

X = np.arange(1, 13, dtype=np.float32).reshape(4, 3)


def skipping(body: Callable[..., Any], cores: int | None = None, trips: Any = None) -> Any:
    """``body`` as a kernel that skips arithmetic, without a grid or on ``cores``."""
    kernel = nki.jit(body)
    return simulate(kernel if cores is None else kernel[cores], skip_arithmetic=True, trips=trips)


def message_of(kernel: Callable[..., Any], *arrays: Any) -> tuple[type[Exception], str]:
    """How a launch fails."""
    with pytest.raises(Exception) as caught:
        kernel(*arrays)
    return type(caught.value), str(caught.value)


def double(x: Any) -> Any:
    """A kernel: 2 x."""
    made = load(x)
    nisa.tensor_scalar(made, made, nl.multiply, 2.0)
    return store(made)


class Counter:
    """How often a kernel's function was called, and what was computed then.

    Attributes:
        made: a list for each call: whether each tile that :meth:`note` was given has memory.
    """

    def __init__(self) -> None:
        self.made: list[list[bool]] = []

    def start(self) -> None:
        self.made.append([])

    def note(self, *tiles: Any) -> None:
        self.made[-1] += [not tile.storage.is_abstract for tile in tiles]


# -- Results and arguments ---------------------------------------------------------------------------------------------


def test_a_result_has_a_shape_and_a_type_and_no_values() -> None:
    result = skipping(double)(X)
    assert isinstance(result, Uncomputed)
    assert (result.shape, result.dtype, result.ndim, result.size) == ((4, 3), nl.float32, 2, 12)
    assert repr(result) == "<Uncomputed [4, 3] float32 of double>"


@pytest.mark.parametrize(
    "use",
    [
        np.asarray,
        lambda result: result[0],
        lambda result: result + 1,
        lambda result: np.float32(1) * result,
        lambda result: X + result,
        lambda result: result == X,
        float,
        bool,
        list,
        np.sum,
    ],
)
def test_values_of_a_result_are_refused(use: Callable[[Any], Any]) -> None:
    with pytest.raises(UncomputedError) as caught:
        use(skipping(lambda x: (double(x), 3))(X)[0])
    assert str(caught.value) == (
        "<lambda>: result [0], [4, 3] float32, has no values: the launch had skip_arithmetic=True, which leaves them "
        "out; launch the kernel without it to read them"
    )


def test_a_method_of_a_result_is_refused_with_the_reason() -> None:
    result = skipping(double)(X)
    assert not hasattr(result, "sum")
    with pytest.raises(AttributeError, match=r"'sum': double: the result, \[4, 3\] float32, has no values"):
        result.sum()


def test_torch_does_not_get_values_either() -> None:
    torch = pytest.importorskip("torch")
    result = skipping(double)(torch.ones((4, 3)))
    for use in (lambda: torch.add(result, 1), lambda: torch.ones(3) + result, lambda: torch.sum(result)):
        with pytest.raises(UncomputedError, match="has no values"):
            use()
    with pytest.raises(ValueError, match="Uncomputed"):  # torch asks for an array in vain, and says so itself
        torch.as_tensor(result)


def test_a_result_is_an_argument_of_the_next_launch_that_skips() -> None:
    result = skipping(double)(X)
    assert skipping(double)(result).shape == (4, 3)
    with pytest.raises(UncomputedError, match="double: argument 'x': double: the result"):
        nki.jit(double)(result)


def test_shapes_stand_for_arrays() -> None:
    assert skipping(double)(spec((4, 3), nl.bfloat16)).dtype == nl.bfloat16


def in_place(x: Any, rows: Any) -> Any:
    """A kernel: the rows of x whose numbers ``rows`` holds are doubled where they are."""
    index = load(rows)
    made = nl.ndarray((rows.shape[0], x.shape[1]), x.dtype, nl.sbuf)
    nisa.dma_copy(made, x.vector_select(0, index))
    nisa.tensor_scalar(made, made, nl.multiply, 2.0)
    nisa.dma_copy(x.vector_select(0, index), made)
    nisa.dma_copy(rows, index)
    return x


def test_arguments_are_not_written() -> None:
    x, rows = X.copy(), np.array([[3], [1]], np.int32)
    assert isinstance(skipping(in_place)(x, rows), Uncomputed)
    assert (x == X).all() and rows.ravel().tolist() == [3, 1]
    nki.jit(in_place)(x, rows)
    assert (x[[3, 1]] == 2 * X[[3, 1]]).all()


def test_a_read_only_argument_stays_one() -> None:
    x = X.copy()
    x.flags.writeable = False
    rows = np.array([[3], [1]], np.int32)
    assert message_of(skipping(in_place), x, rows) == message_of(nki.jit(in_place), x, rows)
    rows.flags.writeable = False
    assert message_of(skipping(in_place), X.copy(), rows) == message_of(nki.jit(in_place), X.copy(), rows)


def test_values_are_needed_of_an_argument_that_has_none() -> None:
    with pytest.raises(NkiValidationError, match="in_place: argument 'rows' came without values, and an address"):
        skipping(in_place)(X, spec((2, 1), nl.int32))
    assert skipping(in_place)(spec((4, 3), nl.float32), np.array([[3], [1]], np.int32)).shape == (4, 3)


def test_arguments_of_which_one_is_an_index_may_not_share_memory() -> None:
    both = np.zeros((4, 1), np.int32)
    with pytest.raises(NotImplementedError, match="arguments 'rows' and 'x' share memory"):
        skipping(in_place)(both, both[:2])
    assert skipping(in_place)(np.zeros((4, 1), np.int32), both[:2]).shape == (4, 1)


# -- What is computed --------------------------------------------------------------------------------------------------


def gathered_by_float(x: Any, scores: Any, counter: Counter | None = None) -> Any:
    """A kernel: rows of x by indices that are computed in float32 from ``scores``; 100 other tiles are computed too."""
    if counter is not None:
        counter.start()
    index = nl.ndarray(scores.shape, nl.int32, nl.sbuf)
    for _ in range(5):
        steps = load(scores)
        nisa.tensor_scalar(steps, steps, nl.add, 1.0)
        nisa.tensor_copy(index, steps)
    result = nl.ndarray((scores.shape[0], x.shape[1]), x.dtype, nl.shared_hbm)
    made = nl.ndarray(result.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(made, x.vector_select(0, index))
    others = [tile(*result.shape) for _ in range(100)]
    for other in others:
        nisa.tensor_tensor(other, other, made, nl.add)
    if counter is not None:
        counter.note(index, steps, scores, x, made, *others)
    nisa.dma_copy(result, made)
    return result


def test_only_what_an_address_comes_from_is_computed() -> None:
    counter = Counter()
    skipping(lambda x, scores: gathered_by_float(x, scores, counter))(X, column(2, 0))
    assert counter.made[-1] == [True] * 3 + [False] * 102
    assert len(counter.made) == 2, "the tile of the first iteration stands for those of the others"


@pytest.mark.parametrize(("scores", "is_fine"), [(column(2, 0), True), (column(2, 3), False), (column(-2, 0), False)])
def test_an_index_computed_from_floats_is_checked(scores: Any, is_fine: bool) -> None:
    if is_fine:
        assert skipping(gathered_by_float)(X, scores).shape == (2, 3)
    else:
        message = message_of(skipping(gathered_by_float), X, scores)
        assert message == message_of(nki.jit(gathered_by_float), X, scores)
        assert message[0] is OutOfRangeError


def test_a_kernel_whose_code_is_new_each_time_is_computed_in_the_end() -> None:
    """No place of it is known again."""

    def kernel(x: Any) -> Any:
        scope: dict[str, Any] = {"nl": nl}
        exec("def made(shape): return nl.ndarray(shape, nl.int32, nl.sbuf)", scope)
        index = scope["made"]((2, 1))
        nisa.memset(index, 4)
        result = nl.ndarray((2, 3), x.dtype, nl.shared_hbm)
        nisa.dma_copy(result, x.vector_select(0, index))
        return result

    assert message_of(skipping(kernel), X) == message_of(nki.jit(kernel), X)


def from_registers(x: Any, scores: Any, count: int) -> Any:
    """A kernel: row r of x, where r is the sum of ``scores``, which the Scalar engine leaves in its registers."""
    argument = load(scores)
    total = nl.ndarray((1, 1), nl.float32, nl.sbuf)
    for number in range(count):
        command = nisa.reduce_cmd.reduce if number else nisa.reduce_cmd.reset_reduce
        nisa.activation(tile(1, 2), nl.copy, argument, reduce_op=nl.add, reduce_cmd=command)
    nisa.activation(tile(1, 2), nl.copy, argument, reduce_cmd=nisa.reduce_cmd.idle, reduce_res=total)
    index = nl.ndarray((1, 1), nl.int32, nl.sbuf)
    nisa.tensor_copy(index, total)
    result = nl.ndarray((1, 3), x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, x.vector_select(0, index))
    return result


@pytest.mark.parametrize("count", [1, 2])
def test_an_index_may_come_out_of_accumulator_registers(count: int) -> None:
    assert skipping(from_registers)(X, np.array([[1, 0]], np.float32), count).shape == (1, 3)
    scores = np.array([[1, 3]], np.float32)
    assert message_of(skipping(from_registers), X, scores, count) == message_of(
        nki.jit(from_registers), X, scores, count
    )


def by_chance(x: Any, seed: Any) -> Any:
    """A kernel: row r of x, where r is a random number below 8, drawn after others that nobody needs."""
    nisa.set_rng_seed(load(seed))
    nisa.rng(nl.ndarray((1, 5), nl.uint32, nl.sbuf))
    index = nl.ndarray((1, 1), nl.uint32, nl.sbuf)
    nisa.rng(index)
    nisa.tensor_scalar(index, index, nl.bitwise_and, 7)
    result = nl.ndarray((1, 3), x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, x.vector_select(0, index))
    return result


def test_random_numbers_are_those_of_a_launch_that_computes() -> None:
    verdicts = set()
    for seed in range(12):
        array = np.array([[seed]], np.int32)
        try:
            nki.jit(by_chance)(X, array)
        except OutOfRangeError:
            verdicts.add("refused")
            assert message_of(skipping(by_chance), X, array) == message_of(nki.jit(by_chance), X, array)
        else:
            verdicts.add("runs")
            skipping(by_chance)(X, array)
    assert verdicts == {"refused", "runs"}


def of_the_other_core(x: Any, scores: Any) -> Any:
    """A kernel on two cores: core c takes the row of x whose number core 1 - c computes from ``scores``."""
    core = nl.program_id()
    own, index = nl.ndarray((1, 1), nl.int32, nl.sbuf), nl.ndarray((1, 1), nl.int32, nl.sbuf)
    nisa.tensor_copy(own, load(scores[core : core + 1]))
    nisa.sendrecv(src=own, dst=index, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
    result = nl.ndarray((2, 3), x.dtype, nl.shared_hbm)
    nisa.dma_copy(result[core : core + 1], x.vector_select(0, index))
    return result


def test_an_index_may_come_from_the_other_core() -> None:
    assert skipping(of_the_other_core, cores=2)(X, column(3, 0)).shape == (2, 3)
    message = message_of(skipping(of_the_other_core, cores=2), X, column(3, 4))
    assert message == message_of(nki.jit(of_the_other_core)[2], X, column(3, 4))
    assert "core 0" in message[1]


def test_a_kernel_may_look_at_values_as_it_may_without() -> None:
    def kernel(x: Any) -> Any:
        made = load(x)
        nisa.tensor_scalar(made, made, nl.multiply, 2.0)
        assert made == made
        return store(made)

    assert skipping(kernel)(X).shape == (4, 3)


# -- Loops -------------------------------------------------------------------------------------------------------------


def rows_of_sum(x: Any, scores: Any) -> Any:
    """A kernel: as many rows of x are doubled, one after the other, as the first of ``scores`` times 1 says."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, x)
    count = nl.ndarray((1, 1), nl.int32, nl.sbuf)
    nisa.tensor_copy(count, load(scores))

    def body(row: Any) -> None:
        made = nl.ndarray((1, x.shape[1]), x.dtype, nl.sbuf)
        nisa.dma_copy(made, x[nl.ds(row, 1)])
        nisa.tensor_scalar(made, made, nl.multiply, 2.0)
        nisa.dma_copy(result[nl.ds(row, 1)], made)

    nl.fori_loop(0, nisa.scalar_load(count), body)
    return result


@pytest.mark.parametrize(("count", "is_fine"), [(0, True), (4, True), (5, False)])
def test_the_bound_of_a_loop_is_computed(count: int, is_fine: bool) -> None:
    if is_fine:
        times = [profile(kernel, X, column(count)) for kernel in (skipping(rows_of_sum), nki.jit(rows_of_sum))]
        assert times[0].instruction_counts == times[1].instruction_counts
        assert times[0].trips == times[1].trips == {f"body ({_line_of(times[0])})": count}
    else:
        message = message_of(skipping(rows_of_sum), X, column(count))
        assert message == message_of(nki.jit(rows_of_sum), X, column(count))


def _line_of(profiled: Any) -> str:
    (loop,) = profiled.trips
    return str(loop).partition("(")[2].removesuffix(")")


def test_stated_trips_replace_a_bound() -> None:
    kernel = skipping(rows_of_sum, trips={"body": 2})
    profiled = profile(kernel, spec((4, 3), nl.float32), spec((1, 1), nl.float32))
    assert list(profiled.trips.values()) == [2]
    assert profiled.time_us == profile(nki.jit(rows_of_sum), X, column(2)).time_us
    assert list(profile(skipping(rows_of_sum, trips="none"), X, column(3)).trips.values()) == [0]
    # A loop that trips do not name is computed.
    assert list(profile(skipping(rows_of_sum, trips={"other": 2}), X, column(3)).trips.values()) == [3]


@pytest.mark.parametrize(
    ("trips", "error", "message"),
    [
        (-1, ValueError, "simulate: trips must not be negative, got -1"),
        ({"body": 1.5}, TypeError, "simulate: trips must be 'none', a number, or a mapping"),
        ("all", TypeError, "simulate: trips must be 'none', a number, or a mapping"),
    ],
)
def test_trips_are_checked(trips: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        simulate(nki.jit(double), skip_arithmetic=True, trips=trips)


def test_trips_go_with_skip_arithmetic() -> None:
    with pytest.raises(ValueError, match="simulate: trips goes with skip_arithmetic=True only, got trips=3"):
        simulate(nki.jit(double), trips=3)


# -- Bugs --------------------------------------------------------------------------------------------------------------


class Bug(NamedTuple):
    """A faulty kernel.

    Attributes:
        body: the kernel.
        arrays: its arguments.
        error: with what it is refused.
        cores: on which it runs.
    """

    body: Callable[..., Any]
    arrays: Sequence[Any]
    error: type[Exception]
    cores: int = 1


def half_written(x: Any) -> Any:
    made = nl.ndarray((4, 6), nl.float32, nl.sbuf)
    nisa.dma_copy(made[:, 0:3], x)
    nisa.tensor_scalar(made, made, nl.multiply, 2.0)
    return store(made)


def half_returned(x: Any) -> Any:
    result = nl.ndarray((4, 6), nl.float32, nl.shared_hbm)
    nisa.dma_copy(result[:, 0:3], x)
    return result


def chosen_by_values(x: Any) -> Any:
    """A kernel that writes elements chosen by the values of x."""
    predicate = nl.ndarray((4, 3), nl.uint8, nl.sbuf)
    argument = load(x)
    nisa.tensor_scalar(predicate, argument, nl.greater, 2.0)
    made = nl.ndarray((4, 3), nl.float32, nl.sbuf)
    nisa.tensor_copy_predicated(made, argument, predicate)
    return store(made)


def added_to_nothing(x: Any) -> Any:
    product = nl.ndarray((3, 3), nl.float32, nl.psum)
    argument = load(x)
    nisa.nc_matmul(product[0:3, 0:2], argument, argument[:, 0:2], accumulate=False)
    nisa.nc_matmul(product, argument, argument, accumulate=True)
    return store(product)


def groups_in_turns(x: Any) -> Any:
    """Two groups of products alternate in a bank."""
    bank, inputs = nl.ndarray((3, 2), nl.float32, nl.psum), load(x)
    for step in range(2):
        for group in range(2):
            view = bank[:, group : group + 1]
            nisa.nc_matmul(view, inputs, inputs[:, group : group + 1], accumulate=step > 0)
    return store(bank)


def continued_registers(x: Any) -> Any:
    made = load(x)
    nisa.activation(made, nl.exp, made, reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reduce)
    return store(made)


def too_large(x: Any) -> Any:
    tiles = [tile(128, 30_000) for _ in range(3)]
    for item in tiles:
        nisa.tensor_scalar(item, item, nl.multiply, 2.0)
    nisa.tensor_tensor(tiles[0], tiles[1], tiles[2], nl.add)
    return store(load(x))


def other_values(x: Any) -> Any:
    """Both cores write one place: sums of what core c multiplies with c + 1."""
    made = load(x)
    nisa.tensor_scalar(made, made, nl.multiply, float(nl.program_id() + 1))
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, made)
    return result


def read_before_it_is_written(x: Any) -> Any:
    """The barrier decides who comes first."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    if nl.program_id() == 1:
        nisa.dma_copy(tile(4, 3), result)
    nisa.core_barrier(result, (0, 1))
    if nl.program_id() == 0:
        nisa.dma_copy(result, load(x))
    return result


BUGS = {
    "half a tile is unwritten": Bug(half_written, [X], UninitializedReadError),
    "half a result is unwritten": Bug(half_returned, [X], UninitializedReadError),
    "a predicate leaves elements unwritten": Bug(chosen_by_values, [X], UninitializedReadError),
    "nothing to add to": Bug(added_to_nothing, [X], NkiValidationError),
    "groups share a bank": Bug(groups_in_turns, [X], nkilib.simulator.PsumGroupError),
    "registers that hold nothing": Bug(continued_registers, [X], UninitializedReadError),
    "SBUF is too small": Bug(too_large, [X], nkilib.simulator.CapacityError),
    "both cores write other values": Bug(other_values, [X], RaceError, 2),
    "one core reads what the other has not written yet": Bug(read_before_it_is_written, [X], UninitializedReadError, 2),
}


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_bug_is_named_as_by_a_launch_that_computes(bug: Bug) -> None:
    arrays = [array.copy() for array in bug.arrays]
    message = message_of(skipping(bug.body, bug.cores), *arrays)
    assert message[0] is bug.error
    assert message == message_of(nki.jit(bug.body)[bug.cores], *arrays)
    assert all((array == item).all() for array, item in zip(arrays, bug.arrays, strict=True))


def test_what_a_predicate_leaves_is_no_bug_where_it_leaves_nothing() -> None:
    assert skipping(chosen_by_values)(X + 2).shape == (4, 3)


def test_both_cores_may_write_the_same_values() -> None:
    """Whether they are the same, only values tell."""

    def kernel(x: Any) -> Any:
        result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nisa.dma_copy(result, double_of(x))
        return result

    def double_of(x: Any) -> Any:
        made = load(x)
        nisa.tensor_scalar(made, made, nl.multiply, 2.0)
        return made

    assert skipping(kernel, cores=2)(X).shape == (4, 3)
    assert nki.jit(kernel)[2](X).shape == (4, 3)


def test_a_kernel_that_catches_everything_is_started_again_all_the_same() -> None:
    """Values are needed in the middle of what it catches."""

    def kernel(x: Any, rows: Any) -> Any:
        result = nl.ndarray((2, 3), x.dtype, nl.shared_hbm)
        try:
            nisa.dma_copy(result, x.vector_select(0, load(rows)))
        except:  # noqa: E722 - the case
            nisa.dma_copy(result, x[0:2])
            if not current_core("").launch.left_out.is_lacking:
                raise
        return result

    assert message_of(skipping(kernel), X, np.array([[9], [0]], np.int32))[0] is OutOfRangeError
    assert skipping(kernel)(X, np.array([[3], [0]], np.int32)).shape == (2, 3)


def test_what_a_kernel_prints_comes_once(capfd: pytest.CaptureFixture[str]) -> None:
    def kernel(x: Any, rows: Any) -> Any:
        nl.device_print("given", x)
        result = nl.ndarray((2, 3), x.dtype, nl.shared_hbm)
        nisa.dma_copy(result, x.vector_select(0, load(rows)))
        return result

    skipping(kernel)(X, np.array([[3], [0]], np.int32))
    printed = capfd.readouterr().out
    assert printed.count("given") == 1
    assert "without values: skip_arithmetic left them out" in printed


def test_ranks_are_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"ranks\(2\)\(double\): skip_arithmetic does not know what"):
        nkilib.simulator.ranks(2)(skipping(double))

    def kernel(x: Any) -> None:
        made = load(x)
        nki.collectives.all_reduce([made], [made], nki.collectives.ReplicaGroup([[0]]), nl.add)

    with pytest.raises(NotImplementedError, match=r"nki\.collectives\.all_reduce: skip_arithmetic does not know what"):
        skipping(kernel)(X)


def test_a_kernel_within_a_kernel_is_part_of_its_launch() -> None:
    inner = skipping(double)
    with pytest.raises(NkiValidationError, match="double: skip_arithmetic is for a launch, and a kernel called inside"):
        nki.jit(lambda x: inner(x))(X)
    assert skipping(lambda x: nki.jit(double)(x))(X).shape == (4, 3)


# -- Times -------------------------------------------------------------------------------------------------------------

LOGITS, TARGETS = normal(256, 2048), np.arange(256, dtype=np.int32) * 7
HIDDEN, WEIGHT = normal(128, 128), normal(512, 128, seed=1)
LSE = np.zeros(256, np.float32)

LAUNCHES: dict[str, tuple[Any, Sequence[Any], dict[str, Any]]] = {
    "gather": (nki.jit(gathered_by_float), [X, column(2, 0)], {}),
    "loop": (nki.jit(rows_of_sum), [X, column(3)], {}),
    "cross-entropy forward": (cross_entropy_forward, [LOGITS, TARGETS], {"chunk_size": 1024}),
    "cross-entropy forward, recomputed": (cross_entropy_forward, [LOGITS * 1e4, TARGETS], {"chunk_size": 1024}),
    "cross-entropy backward": (
        cross_entropy_backward,
        [LOGITS, TARGETS, LSE],
        {"chunk_size": 1024, "dtype": nl.float32, "inplace": False},
    ),
    "linear cross-entropy forward": (linear_cross_entropy_forward, [HIDDEN, WEIGHT, TARGETS[:128] % 512], {}),
}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_modelled_times_are_those_of_a_launch_that_computes(launch: Any, cores: int) -> None:
    kernel, arrays, options = launch
    if kernel.func in (gathered_by_float, rows_of_sum) and cores == 2:
        pytest.skip("both cores would write one result")
    skipped = profile(simulate(kernel[cores], skip_arithmetic=True), *arrays, **options)
    computed = profile(kernel[cores], *arrays, **options)
    assert skipped.time_us == computed.time_us > 0
    assert skipped.engine_busy_us == computed.engine_busy_us
    assert skipped.hbm_read_bytes_by_tensor == computed.hbm_read_bytes_by_tensor
    assert skipped.hbm_written_bytes_by_tensor == computed.hbm_written_bytes_by_tensor
    assert skipped.sbuf_peak_bytes_per_partition == computed.sbuf_peak_bytes_per_partition
    assert skipped.trips == computed.trips
    assert str(skipped) == str(computed)
