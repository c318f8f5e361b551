"""What a YAML file may contain: every key, the type of its value, and the JSON Schema of both."""
