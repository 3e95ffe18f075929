"""Paths and groups of devices, in seconds and bytes per second, with the reason."""
