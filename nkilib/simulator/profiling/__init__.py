# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The modelled time of a launch for readers: tables, traces and pictures.

- ``profile``: runs a kernel, and sums up where its time goes;
- ``bounds``: the least time that the hardware needs for the same work;
- ``profiled_launch``: the instructions and on-chip tensors of the launch, computed on request;
- ``export``: a picture, and a trace for Perfetto;
- ``details``: data for the HTML page: sums by line, device loops, and times in which a tile's content is not needed;
- ``page``: an HTML page with timeline, source, memory and summary;
- ``why``: the critical path, changes that make the kernel faster in the model, and facts, in sentences.
"""
