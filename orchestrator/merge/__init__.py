"""Adapters merged into a base, one tensor at a time: processes of their own, which need torch."""
