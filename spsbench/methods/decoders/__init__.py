"""Ways from a prompt to rounds, one file each."""
