# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small kernels that find out how a device answers questions that the documentation of NKI leaves open.

Each possible answer is a reading (:class:`.probe.Reading`), with the results that numpy computes for it. The result of
a device is looked up among these; the simulator is only one of the devices that are asked. A result that no reading
explains is an answer, too, and is shown.

- ``probe``: the interface of a probe, and what all of them share;
- ``arithmetic``, ``infinities``, ``integers``: the values that instructions compute;
- ``accumulation``: sums over several instructions;
- ``dma``: casts, indices, the order of writes, and written arguments;
- ``loops``: loops whose iterations are counted at run time;
- ``cores``: launches on two cores;
- ``frameworks``: what PyTorch and JAX may pass.
"""
