"""Two revisions side by side in one job, and the gate's test of itself."""
