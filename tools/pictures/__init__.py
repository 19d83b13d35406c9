# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The pictures of the documentation, as SVG that ``python -m tools.write_plots`` writes.

- :mod:`tools.pictures.svg`: :class:`~tools.pictures.svg.Picture`, which writes shapes and text;
- :mod:`tools.pictures.tables`: the tables of the pages, which charts take their figures from;
- :mod:`tools.pictures.charts`: memory, errors beside other libraries, and modelled times over the bound;
- :mod:`tools.pictures.diagrams`: a NeuronCore, and what each form of the loss keeps in HBM;
- :mod:`tools.pictures.decisions`: the tree for choosing a loss;
- :mod:`tools.pictures.timelines`: what the engines do before and after each step of a tutorial.
"""
