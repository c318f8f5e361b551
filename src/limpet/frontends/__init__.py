"""What the command line, the server and integrations share: runs and values as plain data, and who may ask for them."""
