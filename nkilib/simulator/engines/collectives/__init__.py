# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operations among ranks: the functions of ``nki.collectives``. Their time is not modelled.

- ``groups``: replica groups, and the position of a rank in them;
- ``exchange``: code for all operations: checks of tensors, the exchange of data, and reductions;
- ``fixed_size``: all-reduce, all-gather, reduce-scatter, all-to-all;
- ``variable_size``: all-gather-v and all-to-all-v, which read the sizes of the data at run time;
- ``permutes``: operations in which each rank sends to one other rank.
"""
