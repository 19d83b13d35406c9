# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why a kernel takes as long as it does, and what makes it faster. Modelled, not measured.

- ``critical_path``: the stretches of time that add up to the time of a launch;
- ``facts``: sums and shares for findings, whether the cores repeat each other's work, and the format of figures;
- ``findings``: the functions that state facts about the time;
- ``changes``: the changes of the recorded instructions that may save time;
- ``flow``: the values in the on-chip tensors of a program, which changes must keep;
- ``study``: the trial of these changes; ``retiming``: the time of a changed launch;
- ``report``: all findings of a launch, with its critical path and waits as tables.
"""
