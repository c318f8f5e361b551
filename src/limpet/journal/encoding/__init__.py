"""Values as bytes: the exact codec, the types it knows, and the envelope around each record."""
