"""`trainmaster faults run`: a training without a fault, one with each, and a table of what came of it."""
