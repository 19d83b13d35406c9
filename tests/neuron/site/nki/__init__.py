# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A stand-in for NKI 0.7.0: the documented names and signatures only, with the simulator behind them.

`NKILIB_BACKEND=neuron` takes it for the real NKI where its directory is on the import path. What is not documented is
not here, on tensors and registers too; what is documented and the simulator does not have raises NotImplementedError by
name. As 0.7 does, it runs kernels as plain Python, and refuses that the value of a tensor, register or scalar steers
it. Nothing else in the process may import the simulator.
"""

from . import collectives as collectives
from . import compiler as compiler
from . import isa as isa
from . import language as language
from ._guard import refuse_the_simulator as _refuse_the_simulator
from ._kernel import jit as jit
from ._kernel import simulate as simulate

__version__ = "0.7.0"

_refuse_the_simulator()
