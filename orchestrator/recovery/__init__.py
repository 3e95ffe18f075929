"""What happens to a run that ends early: what it was, what is to be done, and why."""
