"""What generated answers are worth: metrics over texts, rules, refusals, and the table of samples. Pure."""
