"""Power loss, modelled: record what a program does to a disk, and try what a power loss may leave of it."""
