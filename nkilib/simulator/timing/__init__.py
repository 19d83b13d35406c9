# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The model of time: the cost of instructions and the busy times of engines. Modelled, not measured.

From an issued instruction to its time:

- ``trace``: the observer of a core, which collects its instructions; the launches to profile;
- ``passes``: changes of the compiler that instructions go through before they are timed;
- ``instruction``: an instruction that is not timed yet, and the properties that instructions of one kind share;
- ``settling``: the time of each instruction, and the places of tiles in PSUM;
- ``timeline``: the engines and queues of a core: when each is free, and what an instruction waited for;
- ``instruction_log``: the timed instructions, in little memory, and events made from them;
- ``recording``: what each instruction touched, from which a changed launch can be timed;
- ``repetition``: loops whose iterations only repeat earlier ones, which need not run.

What times depend on:

- ``costs``: the cycles of instructions;
- ``dma``: the queues and rates of transfers, and the busy times of the DMA engines;
- ``footprints``: what a view occupies of its storage;
- ``dependencies``: the accesses to a storage for which later ones wait;
- ``parameters``: the assumptions of the model.
"""
