# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Passes over the instructions that model documented or observed changes of the compiler before a kernel runs.

Each pass is a module of this package with its evidence, an entry of :data:`.registry.PASSES`, and a switch of
:class:`~nkilib.simulator.timing.parameters.ModelParameters`. A pass changes the cost of instructions, never their
results, because the simulator has computed the results already.

- ``registry``: all passes, and the window with the passes that are switched on;
- ``window``: the instructions among which passes look back and ahead;
- ``dead_stores``, ``invariants``, ``broadcasts``: instructions that the device does not run;
- ``engine_choice``: the engine of an instruction for which the kernel names none.
"""
