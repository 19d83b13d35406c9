# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operations among ranks: the functions of ``nki.collectives``. Their time is not modelled.

- ``exchange``: replica groups, the checks that operations share, and the exchange itself;
- ``fixed_size``: all-reduce, all-gather, reduce-scatter, all-to-all;
- ``variable_size``: all-gather-v and all-to-all-v, whose sizes are read at run time;
- ``permutes``: sends from each rank to one other.
"""
