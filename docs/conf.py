# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Configuration of the documentation site: Sphinx reads the Markdown pages and the docstrings of the public names."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]

import nkilib  # noqa: E402

project = "nkilib"
author = "The nkilib authors"
copyright = "The nkilib authors, Apache-2.0"
version = release = nkilib.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "api_pages",
    "docstrings",
    "live_report",
    "navigation",
    "page_body",
]
exclude_patterns = ["_ext"]

# A newcomer reads from top to bottom.
navigation = {
    "Start": [
        "how_to/install",
        "tutorials/first_loss_in_torch",
        "how_to/choose_a_loss",
        "tutorials/first_kernel_on_the_simulator",
        "tutorials/from_a_slow_kernel_to_the_bound",
        "reference/promises",
        "glossary",
    ],
    "On a Trainium": [
        "how_to/on_an_instance",
        "how_to/verify_on_a_device",
        "how_to/install_beside_the_sdk",
    ],
    "In training": [
        "how_to/training_loop",
        "how_to/hugging_face",
        "how_to/trl",
        "how_to/optimum_neuron",
        "how_to/torchtitan",
        "how_to/reinforcement_learning",
        "how_to/loss_recipes",
        "how_to/distillation_recipes",
        "how_to/contrastive_recipes",
        "how_to/fsdp",
        "how_to/tensor_parallel",
        "how_to/tensor_parallel_without_logits",
        "how_to/jax",
    ],
    "Kernels, simulator, profiles": [
        "how_to/own_kernels",
        "how_to/run_other_kernels",
        "how_to/profile_a_kernel",
    ],
    "Reference": [
        "reference/torch",
        "reference/torch_memory",
        "reference/torch_operators",
        "reference/fused_models",
        "reference/losses",
        "reference/losses_regression",
        "reference/losses_classification",
        "reference/losses_margin",
        "reference/losses_embedding",
        "reference/losses_sequence",
        "reference/losses_times",
        "reference/linear_cross_entropy",
        "reference/linear_cross_entropy_memory",
        "reference/linear_token_scores",
        "reference/linear_cross_entropy_kernels",
        "reference/distillation",
        "reference/softmax",
        "reference/jax",
        "reference/kernels",
        "reference/kernels_extended",
        "reference/guarantees",
        "reference/guarantees_errors",
        "reference/simulator",
        "reference/simulator_checks",
        "reference/simulator_functions",
        "reference/simulator_readings",
        "reference/simulator_readings_instructions",
        "reference/simulator_readings_cores",
        "reference/model_constants",
        "reference/cli",
        "reference/probes",
        "reference/public_api",
        "reference/api/index",
    ],
    "Explanation": [
        "explanation/cross_entropy",
        "explanation/cross_entropy_shift",
        "explanation/cross_entropy_extended",
        "explanation/cross_entropy_accuracy",
        "explanation/linear_cross_entropy",
        "explanation/linear_cross_entropy_figures",
        "explanation/losses",
        "explanation/softmax",
        "explanation/distillation",
        "explanation/distillation_figures",
        "explanation/simulator",
        "explanation/replay",
        "explanation/simulator_speed",
        "explanation/performance_model",
        "explanation/verify",
        "explanation/profiling_cost",
    ],
    "Evidence": [
        "evidence/measurements",
        "evidence/measured_kernels",
        "evidence/measured_instructions",
        "evidence/model_figures",
        "evidence/size_grid",
        "evidence/memory",
        "evidence/peers",
        "evidence/peers_fused_models",
        "evidence/peers_hidden_states",
        "evidence/peers_sources",
    ],
    "Contributing": [
        "how_to/contribute",
        "how_to/where_things_are",
        "how_to/further_checks",
        "how_to/add_a_loss",
        "how_to/finish_a_loss",
        "how_to/add_a_loss_of_your_own",
        "how_to/add_a_loss_with_kernels",
        "how_to/add_an_option",
        "how_to/newcomers_path",
        "changelog",
    ],
}

# The packages whose parts are the families of a public module, each with an API page of its own.
api_families = {
    "nkilib.torch": ["nkilib.torch", "nkilib.torch.functions"],
    "nkilib.experimental.loss": [
        "nkilib.experimental.loss",
        "nkilib.experimental.loss.elementwise",
        "nkilib.experimental.loss.linear_cross_entropy",
        "nkilib.experimental.loss.linear_distillation",
        "nkilib.experimental.loss.rowwise",
    ],
    "nkilib.simulator": ["nkilib.simulator"],
    "nkilib.simulator.api.isa": ["nkilib.simulator", "nkilib.simulator.engines"],
    "nkilib.simulator.api.language": ["nkilib.simulator", "nkilib.simulator.language"],
}

# Anchors of headings as GitHub makes them, so that a link works there and on the site.
myst_heading_anchors = 5

autodoc_typehints = "none"  # argument lines state shapes and dtypes, which the types of arrays do not
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else a field is described twice: by its class and as its member
napoleon_use_rtype = False
napoleon_custom_sections = [("Dimensions", "params_style"), ("Results", "params_style")]
add_module_names = False
default_role = "code"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"nkilib {release}"
html_copy_source = False
html_show_sphinx = False
