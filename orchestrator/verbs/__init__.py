"""What each verb of the command line does: the one place where results are printed. `table` lists them."""
