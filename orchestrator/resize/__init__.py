"""Adapters of another rank in the middle of training: which ranks, and what becomes of matrices and moments."""
