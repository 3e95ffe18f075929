"""Sparse gradients: packets of the largest elements, what is left over for later steps, and their sums over the ranks."""
