# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why a kernel takes as long as it does: its critical path, and findings in sentences. Modelled, not measured.

- ``critical_path``: the notes of a launch, and the stretches of time that add up to it;
- ``facts``: sums and shares that findings are made of, whether the cores repeat each other's work, and how sentences
  show figures;
- ``findings``: the functions that look for what makes a kernel slow;
- ``retiming``: the time of the same instructions under another assumption;
- ``report``: all findings of a launch, beside its critical path and waits as tables.
"""
