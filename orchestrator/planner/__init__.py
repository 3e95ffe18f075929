"""Chooses how to run: all strategies that fit, ranked, and the reason for every rejection."""
