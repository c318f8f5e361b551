"""What can be done with a stored run without running it: answer, cancel, fork, rollback, export."""
