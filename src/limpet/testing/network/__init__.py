"""Networks that fail on demand, and a hunt for what a store does when its network goes silent."""
