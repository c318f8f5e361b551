"""What the command line, the server and integrations share: runs and values as data, and who may ask for them."""
