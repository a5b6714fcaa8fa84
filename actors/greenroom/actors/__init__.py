"""What is alive: everything that waits, as supervised actors on trio."""
