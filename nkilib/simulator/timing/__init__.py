# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The performance model: the cost of instructions and the busy times of engines. Modelled, not measured.

From an issued instruction to its time:

- ``trace``: observes the cores of launches to profile, and collects their instructions;
- ``passes``: models changes that the compiler makes to instructions, before they are timed;
- ``instruction``: an instruction that is not timed yet, and the properties that instructions of one kind share;
- ``settling``: gives each instruction its time, and each tile in PSUM its place;
- ``timeline``: the times at which the engines and queues of a core are busy, and the causes of waits;
- ``instruction_log``: the timed instructions, in little memory, and events made from them;
- ``recording``: the tensors that each instruction accessed, from which a changed launch can be timed;
- ``repetition``: loops whose iterations only repeat earlier ones, which need not run.

What times depend on:

- ``costs``: the cycles of instructions;
- ``dma``: the queues and rates of transfers, and the busy times of the DMA engines;
- ``footprints``: the bytes of a storage that a view occupies;
- ``dependencies``: the accesses to a storage for which later accesses wait;
- ``parameters``: the assumptions of the model.
"""
