# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replay of repeated launches: a plan repeats the instructions of a launch as a list of steps on arrays.

A *key* is equal for launches that may run the same instructions. A *step* is a Python call without arguments. *Work* is
the reads, writes and computations of an instruction, from which steps are made.

How a launch runs:

- ``launch``: chooses whether the launch is replayed, recorded or neither;
- ``key``: makes the key of a launch, or the reason why it has none;
- ``errors``: errors for launches with a key that are not replayed;
- ``entries``: keeps the recordings and plans of each key;
- ``counts``: counts how launches ran.

From a launch to its plan:

- ``recorder``: records the instructions while a launch runs;
- ``stream``: the recorded instructions, on storages without memory;
- ``data_dependence``: finds the tensors in which data choose the elements that a launch accesses;
- ``emission``: turns recorded instructions into work;
- ``work``: the kinds of work;
- ``passes``: combine work, and remove what is unnecessary;
- ``memory``: the memory of tiles, and the arrays of steps;
- ``builder``: turns work into steps;
- ``plan``: runs the steps on the arrays of a launch.
"""
