"""Work in many pieces on many workers: one driver hands out, takes in, and writes."""
