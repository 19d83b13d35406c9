# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nkilib.simulator.machine.core`: XORWOW step by step in plain Python, and how lanes, engines and cores differ."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.simulator.numerics.random_state import RandomState, Xorwow
from nkilib.simulator.terms.enums import Engine

MASK = 2**32 - 1
ALL = slice(0, 128)


def step(state: list[int]) -> int:
    """One step of XORWOW, as Marsaglia's paper writes it; `state` is x, y, z, w, v and the counter."""
    x, y, z, w, v, counter = state
    t = x ^ (x >> 2)
    new = (v ^ (v << 4) ^ t ^ (t << 1)) & MASK
    counter = (counter + 362437) & MASK
    state[:] = y, z, w, v, new, counter
    return (counter + new) & MASK


def numbers_of(words: npt.NDArray[np.uint32], streams: int, count: int) -> tuple[list[int], list[int]]:
    """The numbers of one lane and its words afterwards: one from each stream in turn, all stepped equally often."""
    states = [[int(word) for word in words[6 * k : 6 * k + 6]] for k in range(streams)]
    numbers = [step(state) for _ in range(-(-count // streams)) for state in states]
    return numbers[:count], list(itertools.chain(*states))


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 6, 20, 21, 103])
def test_the_numbers_are_those_of_xorwow(streams: int, count: int) -> None:
    generator = Xorwow(streams, 7)
    before = generator.words.copy()
    drawn = generator.draw(ALL, count)
    assert drawn.shape == (128, count) and drawn.dtype == np.uint32
    for lane in (0, 1, 64, 127):
        numbers, words = numbers_of(before[lane], streams, count)
        assert drawn[lane].tolist() == numbers
        assert generator.words[lane].tolist() == words


def test_the_first_number_of_the_state_in_the_paper() -> None:
    """The initial values of Marsaglia's listing, worked out by hand.

    t = x ^ (x >> 2) = 123456789 ^ 30864197 = 109919824; v ^ (v << 4) = 5783321 ^ 92533136 = 98291337;
    t ^ (t << 1) = 109919824 ^ 219839648 = 194462448; the new v is the exclusive or of the last two, 239897721;
    the counter becomes 6615241 + 362437 = 6977678.
    """
    generator = Xorwow(1, 0)
    generator.words[5] = [123456789, 362436069, 521288629, 88675123, 5783321, 6615241]
    assert generator.draw(slice(5, 6), 1).tolist() == [[239897721 + 6977678]]


def test_other_lanes_stay_as_they_are() -> None:
    generator, twin = Xorwow(4, 7), Xorwow(4, 7)
    drawn = generator.draw(slice(32, 35), 8)
    np.testing.assert_array_equal(drawn, twin.draw(ALL, 8)[32:35])
    np.testing.assert_array_equal(generator.words[32:35], twin.words[32:35])
    np.testing.assert_array_equal(generator.words[:32], Xorwow(4, 7).words[:32])
    np.testing.assert_array_equal(generator.words[35:], Xorwow(4, 7).words[35:])


@given(st.integers(0, 40), st.integers(0, 40))
def test_one_stream_goes_on_where_it_stopped(first: int, second: int) -> None:
    generator = Xorwow(1, 7)
    parts = [generator.draw(ALL, first), generator.draw(ALL, second)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), Xorwow(1, 7).draw(ALL, first + second))


def test_the_words_are_all_there_is_to_know() -> None:
    generator = Xorwow(4, 7)
    generator.draw(ALL, 3)  # not a multiple of the streams
    words = generator.words.copy()
    following = generator.draw(ALL, 9)
    generator.draw(ALL, 5)
    generator.words[...] = words
    np.testing.assert_array_equal(generator.draw(ALL, 9), following)


def test_no_lanes_or_no_numbers() -> None:
    generator = Xorwow(4, 7)
    assert generator.draw(slice(0, 0), 5).shape == (0, 5)
    assert generator.draw(ALL, 0).shape == (128, 0)
    np.testing.assert_array_equal(generator.words, Xorwow(4, 7).words)


def test_equal_seeds_give_equal_numbers_and_others_do_not() -> None:
    generator = Xorwow(4, 1)
    generator.seed(2**32 - 1)
    np.testing.assert_array_equal(generator.words, Xorwow(4, 2**32 - 1).words)
    assert not np.isin(generator.words, Xorwow(4, 1).words).all(axis=1).any()


@pytest.mark.parametrize("streams", [1, 4])
def test_every_lane_has_numbers_of_its_own(streams: int) -> None:
    drawn = Xorwow(streams, 0).draw(ALL, 64)
    assert len(np.unique(drawn, axis=0)) == 128
    # 8192 numbers of 32 bits: fewer than 0.01 pairs of equal ones are expected.
    assert np.unique(drawn).size >= drawn.size - 1


def test_lanes_are_not_correlated() -> None:
    """A correlation of 1024 numbers has a standard deviation of 1/32; the largest of 8128 stays within 6 of them."""
    drawn = Xorwow(4, 3).draw(ALL, 1024)
    correlation = np.corrcoef(drawn.astype(np.float64)) - np.eye(128)
    assert np.abs(correlation).max() < 6 / 32


def test_bits_are_even() -> None:
    """Each of 32 bits over 65536 numbers: the share of ones is 1/2, within 5 standard deviations of 1/512."""
    drawn = Xorwow(4, 0).draw(ALL, 512)
    for bit in range(32):
        assert abs(((drawn >> np.uint32(bit)) & 1).mean() - 0.5) < 5 / 512


def test_a_core_keeps_a_generator_for_each_engine() -> None:
    state = RandomState(0)
    vector, gpsimd = state.of(Engine.vector), state.of(Engine.gpsimd)
    assert state.of(Engine.vector) is vector and vector is not gpsimd
    assert vector.words.shape == (128, 24) and gpsimd.words.shape == (128, 6)
    assert not np.isin(vector.words[:, :6], gpsimd.words).all(axis=1).any()


def test_unseeded_cores_differ_from_each_other_and_repeat() -> None:
    words = RandomState(0).of(Engine.vector).words
    np.testing.assert_array_equal(words, RandomState(0).of(Engine.vector).words)
    assert not np.isin(words, RandomState(1).of(Engine.vector).words).all(axis=1).any()
