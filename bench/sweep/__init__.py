"""From a suite to records: what is to be covered, and worker processes that measure it."""
