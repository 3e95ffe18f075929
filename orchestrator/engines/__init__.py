"""Engines: who holds which bytes, and how a whole adapter tensor is had from them."""
