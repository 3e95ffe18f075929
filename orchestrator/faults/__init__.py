"""Faults that are done to a run on purpose: `faults=NAME` of `trainmaster train`, and `trainmaster faults run`."""
