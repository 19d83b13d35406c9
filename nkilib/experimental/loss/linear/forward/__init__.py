"""What the forwards of both linear losses share: plans, the pass over blocks of classes, and what streams in it."""
