"""Jinja2 texts of batch scripts."""
