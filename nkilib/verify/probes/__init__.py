# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small kernels that find out how a device answers questions that the documentation of NKI leaves open.

Each possible answer is a reading (:class:`.probe.Reading`), with the results that numpy computes for it. A probe
compares the result of a device, or of the simulator, with the results of all readings. A result that no reading
explains is an answer, too, and is shown.

- ``probe``: the interface of a probe, and what all of them share;
- ``arithmetic``, ``infinities``, ``integers``: the values that instructions compute;
- ``accumulation``: sums over several instructions;
- ``dma``: casts, indices, the order of writes, and written arguments;
- ``loops``: loops whose iterations are counted at run time;
- ``cores``: launches on two cores;
- ``frameworks``: what PyTorch and JAX may pass.
"""
