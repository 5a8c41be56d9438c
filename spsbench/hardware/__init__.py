"""Hardware: processors, memory, load and files of this machine."""
