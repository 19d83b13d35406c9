# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a compiler is documented, or plainly seen, to do to a kernel before it runs: passes over its instructions.

Each pass is a module of this package with its evidence, an entry of :data:`.registry.PASSES`, and a switch of
:class:`~nkilib.simulator.timing.parameters.ModelParameters`. A pass changes what instructions cost, never what they do:
the simulator has computed already.
"""
