"""What the command line and the server share: runs as plain data, and graphs on the store that a program chose."""
