"""What an approximation gets wrong: on real activations, dropped into a model, and in tasks that it is trained for."""
