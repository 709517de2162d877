"""From a verdict and its evidence to what people read."""
