"""A second, independent estimate of training memory: the real model on tensors without storage."""
