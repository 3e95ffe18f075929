"""What a run looks like while it goes on: readings of ranks, devices and hosts, and what they mean."""
