"""Composes topology and launch: plans a fine-tune, starts it, watches it, reports it."""
