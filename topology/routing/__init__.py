"""Routes of collectives: the bound, schedules that come near it, and the choice among them."""
