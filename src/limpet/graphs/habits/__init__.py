"""What those who come from other libraries try first, by library: it works, or an error says what to use instead."""
