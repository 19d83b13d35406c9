"""The options of the extended kernels, in the form that their stages ask for, and the tiles that they need."""

from __future__ import annotations

from typing import Any


def given_options(
    ignore_index: int,
    label_smoothing: float,
    logit_softcap: Any,
    lse_square_scale: float,
    first_class: int,
    num_classes: Any,
) -> Any:
    """The arguments that forward and backward share as a dict, by their names, to be validated."""
    given: Any = dict()
    given["ignore_index"], given["label_smoothing"] = ignore_index, label_smoothing
    given["logit_softcap"], given["lse_square_scale"] = logit_softcap, lse_square_scale
    given["first_class"], given["num_classes"] = first_class, num_classes
    return given


def make_options(logits_hbm: Any, targets_hbm: Any, class_weight_hbm: Any, given: Any) -> Any:
    """The options that forward and backward share, as a dict; what is off is 0 or False.

    Args:
        logits_hbm, targets_hbm, class_weight_hbm: of the launch.
        given: from :func:`given_options`, valid.

    Returns:
        ``ignore_index``, ``first_class`` and ``num_classes`` as given, the last one a number always;
        ``is_shard``: the logits hold a part of the classes;
        ``is_weighted``: there are class weights;
        ``has_probabilities``: targets are class probabilities;
        ``has_factors``: the loss sums over all classes;
        ``needs_class_weights``: those of all classes are needed, not those of the targets alone;
        ``kept``: 1 - e and ``spread``: e / classes, of the label smoothing e;
        ``softcap``: of the logits; ``square``: the factor of the squared log-sum-exp.
    """
    vocab_size = logits_hbm.shape[1]
    num_classes, softcap = given["num_classes"], given["logit_softcap"]
    options: Any = dict()
    options["ignore_index"] = given["ignore_index"]
    options["first_class"] = given["first_class"]
    options["num_classes"] = vocab_size if num_classes == None else num_classes  # noqa: E711  (NKI has no "is")
    options["is_shard"] = options["num_classes"] != vocab_size
    options["is_weighted"] = class_weight_hbm != None  # noqa: E711
    options["has_probabilities"] = len(targets_hbm.shape) == 2
    options["kept"] = 1.0 - given["label_smoothing"]
    options["spread"] = given["label_smoothing"] / options["num_classes"]
    options["softcap"] = 0.0 if softcap == None else softcap  # noqa: E711
    options["square"] = given["lse_square_scale"]
    options["has_factors"] = options["has_probabilities"] or options["spread"] != 0.0
    options["needs_class_weights"] = options["is_weighted"] and options["has_factors"]
    return options


def add_forward_options(options: Any, given: Any) -> None:
    """Add what the forward alone is asked for, and ``has_moments``: sums of logits over the classes are needed.

    The sum of distances may need class weights that the loss does not.
    """
    options["with_argmax"] = given["with_argmax"]
    options["with_entropy"] = given["with_entropy"]
    options["with_distance_sum"] = given["with_distance_sum"]
    options["with_log_sum"] = given["with_log_sum"]
    options["has_moments"] = options["has_factors"] or options["with_distance_sum"]
    options["needs_class_weights"] = options["is_weighted"] and options["has_moments"]


def forward_scratch(options: Any) -> Any:
    """Names of the float32 tiles of a chunk's size that the forward needs."""
    names = list()
    if options["softcap"] != 0.0:
        names.append("scores")
    if options["needs_class_weights"]:
        names.append("weights")
    if options["has_probabilities"]:
        names.append("probabilities")
    if options["has_moments"] or options["with_entropy"]:
        names.append("products")
    if options["with_entropy"]:
        names.append("exponentials")
    return names


def backward_scratch(options: Any) -> Any:
    """Names of the float32 tiles of a chunk's size that the backward needs."""
    names = list()
    names.append("exponentials")
    if options["softcap"] != 0.0:
        names.append("squares")
    if options["needs_class_weights"]:
        names.append("weights")
    if options["has_probabilities"]:
        names.append("probabilities")
    return names
