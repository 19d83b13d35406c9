"""``kl_div`` and ``KLDivLoss``: the semantics of PyTorch around two operators."""
