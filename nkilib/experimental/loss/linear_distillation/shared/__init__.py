"""What forward, mixture and backward share: a launch with its options, and its sizes."""
