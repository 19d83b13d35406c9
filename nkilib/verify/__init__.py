# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks whether a Neuron device does what this library expects of it: ``python -m nkilib verify``.

There are three kinds of steps:

- ``kernels``: every kernel of the library on fixed inputs;
- ``probes``: questions that the documentation leaves open;
- ``times``: times compared with the performance model.

What runs them:

- ``step``: the interface of a step, and the outcome of its launch: it is judged where the simulator runs, because the
  process that launches has only the real NKI;
- ``registry``: all steps;
- ``runner``: runs each step in processes of its own with a time limit, on a device or the simulator, and reports;
- ``worker``: such a process.
"""
