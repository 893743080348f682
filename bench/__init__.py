"""attention-bench: time, memory, correctness and fidelity of attention, with proof of what ran."""

__version__ = "0.1.0"
