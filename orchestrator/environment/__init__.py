"""What a launcher may set in the environment of the ranks, and how it meets what the user has set."""
