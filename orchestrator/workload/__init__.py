"""What is to be computed, in numbers: the base model, the adapters and the rows. No weights are read."""
