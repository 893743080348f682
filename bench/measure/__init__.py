"""One case: its time, its memory, and whether it is right."""
