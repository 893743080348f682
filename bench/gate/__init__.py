"""Whether a change made anything slower, fatter, wronger or vanish: pairs, stored runs, policy and verdicts."""
