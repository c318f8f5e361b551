"""What runs a plan: the pure loop, the two drivers that carry out what it asks, and the calls users make."""
