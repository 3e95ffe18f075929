"""Detectors: each a pure `update(state, reading, facts) -> (state, findings)` with bounded memory.

A finding comes once, when it is certain enough; it can come again after its cause was gone for a while.
"""
