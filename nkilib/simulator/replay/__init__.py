# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replay of repeated launches: a plan holds the instructions of a launch as a list of steps on arrays.

The way of a launch:

- ``launch``: the choice whether it is replayed, recorded or neither;
- ``key``: the key that differs between launches whose instructions may differ, or the reason why a launch has none;
- ``errors``: reasons why a launch with a key is not replayed;
- ``entries``: the recordings and plans of each key;
- ``counts``: counts of how launches ran.

From a launch to its plan:

- ``recorder``: records the instructions while a launch runs;
- ``stream``: the recorded instructions, on storages without memory;
- ``data_dependence``: the tensors whose data decide which elements a launch accesses;
- ``emission``: turns recorded instructions into work;
- ``work``: the pieces of work;
- ``passes``: combine work, and remove what is unnecessary;
- ``memory``: the places of tiles, and the arrays of steps;
- ``builder``: turns work into steps;
- ``plan``: runs the steps on the arrays of a launch.
"""
