"""What this machine is and what it is doing: processor, memory, load, folders."""
