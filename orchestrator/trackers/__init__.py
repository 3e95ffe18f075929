"""Trackers of experiments (W&B, MLflow, TensorBoard): a process that reads a run's files and passes them on."""
