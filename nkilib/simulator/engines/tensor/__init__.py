# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the Tensor engine.

- ``matmul``: ``nc_matmul`` and ``nc_transpose``;
- ``mx``: products and quantization of MX types;
- ``accumulation``: the sums of products in PSUM.
"""
