"""Topologies for people to read."""

from topology.render.text import render

__all__ = ["render"]
