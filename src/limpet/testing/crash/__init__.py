"""The crash kit: kill a graph at every point where that could matter, and check that it ends as if it hadn't been."""
