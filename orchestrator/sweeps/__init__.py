"""Sweeps of `train`: one process and one run directory a trial, side by side where devices allow, one table at the end.

`allot` and the table are pure; `running` starts and watches; `plugins` is where Hydra calls us.
"""
