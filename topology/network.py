"""Many hosts as one topology: snapshots merged by a description of the network between them."""
