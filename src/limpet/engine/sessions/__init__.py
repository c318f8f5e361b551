"""One run, opened in this process: how it starts, how it resumes, and what it was compiled with."""
