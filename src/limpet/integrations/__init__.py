"""What makes Limpet fit in with other programs: each module is for one of them, and needs the extra of its name."""
