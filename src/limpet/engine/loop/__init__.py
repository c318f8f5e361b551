"""The loop that runs every graph. It is pure: it yields what to do and is sent what happened."""
