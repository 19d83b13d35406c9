# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Checks whether a Neuron device does what this library expects: ``python -m nkilib verify``.

A *step* is one launch and the judgement of its outcome. There are three kinds of steps:

- ``kernels``: every kernel of the library on fixed inputs;
- ``probes``: questions that the documentation leaves open;
- ``times``: times compared with the performance model.

The other modules run the steps:

- ``step``: the interface of a step, and the outcome of its launch. One process launches, with only the real NKI;
  another one judges the outcome, with the simulator;
- ``registry``: all steps;
- ``runner``: runs each step in processes of its own with a time limit, on a device or the simulator, and reports;
- ``worker``: the main program of these processes.
"""
