# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why a kernel takes as long as it does, and what makes it faster. Modelled, not measured.

- ``critical_path``: the notes of a launch, and the stretches of time that add up to it;
- ``facts``: sums and shares that findings are made of, whether the cores repeat each other's work, and how sentences
  show figures;
- ``findings``: the functions that state facts about the time;
- ``changes``: the changes of the recorded instructions that may save time, with ``flow``: the values in the tensors on
  chip;
- ``study``: the trial of these changes, with ``retiming``: the time of a changed launch;
- ``report``: all findings of a launch, beside its critical path and waits as tables.
"""
