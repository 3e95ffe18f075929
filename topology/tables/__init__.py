"""Vendor figures as data, with source and date; `topology.hardware` and `topology.link_rates` look them up."""
