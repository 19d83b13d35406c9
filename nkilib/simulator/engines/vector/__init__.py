# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the Vector engine.

- ``arithmetic``: copies, constants, operators and reductions;
- ``accumulating``: instructions that also reduce their results into accumulator registers;
- ``scalar_operand``: operators with a scalar operand, and their checks;
- ``selection``: ``affine_select``, ``range_select``, ``tensor_copy_predicated``;
- ``scan``: instructions in which an element depends on the previous element;
- ``search``: searches for eight values in each partition;
- ``shuffle``: ``nc_stream_shuffle``;
- ``batch_norm``: ``bn_stats`` and ``bn_aggr``.
"""
