# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Whether a Neuron device does what this library expects of it: ``python -m nkilib verify``.

Three kinds of steps: the kernels on fixed inputs (:mod:`.kernels`), probes of what documentation leaves open
(:mod:`.probes`), and times beside the performance model (:mod:`.times`). :mod:`.run` runs them, each in a process of
its own with a limit of time, and reports. Without a device the same steps run on the simulator.

What a launch gave is an :class:`~.observation.Observation`, which is judged where the simulator runs: in the process
that launches, the real NKI is all there is.
"""
