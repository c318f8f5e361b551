"""What a node of a YAML file can do by name: the built-in actions, and those that users register."""
