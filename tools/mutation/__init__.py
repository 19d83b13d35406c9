"""Parts of ``tools.mutate``: which changes there are, copies of the checkout, and what the tests say of a change."""
