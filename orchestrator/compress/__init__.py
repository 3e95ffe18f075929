"""Sparse gradients: packets of the largest elements, what is left over for later steps, sums over the ranks."""
