"""Ways to run a language model, one file each."""
