"""What this machine reaches: the parts of `trainmaster bench`, each measured in processes of its own."""
