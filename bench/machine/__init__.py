"""The machine and the source: what they are, and whether they are fit to measure."""
