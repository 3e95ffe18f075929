"""Runs a schedule of the topology on torch process groups.

`layout` and `program` are pure: they say which elements a rank sends, receives and sums, in which order.
`execute` carries a program out, `hook` does so for the buckets of DistributedDataParallel, `fit` turns measured
transfers into latency and bandwidth.
"""
