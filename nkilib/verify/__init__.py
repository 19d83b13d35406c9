# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks whether a Neuron device does what this library expects of it: ``python -m nkilib verify``.

There are three kinds of steps: the kernels on fixed inputs (:mod:`.kernels`), probes of questions that the
documentation leaves open (:mod:`.probes`), and times compared with the performance model (:mod:`.times`). :mod:`.run`
runs each step in a process of its own with a time limit, and reports. Without a device the same steps run on the
simulator.

The outcome of a launch is an :class:`~.observation.Observation`, which is judged where the simulator runs: the process
that launches has only the real NKI.
"""
