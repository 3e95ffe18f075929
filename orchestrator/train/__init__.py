"""What runs inside a rank. Started as processes; the command line imports none of it."""
