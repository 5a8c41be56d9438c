"""Model-written programs, run where they can reach nothing, or not run at all."""
