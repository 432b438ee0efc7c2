"""Who a process is, whose child it is, and how that is known."""
