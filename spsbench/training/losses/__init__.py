"""What a drafter's law is worth beside its target's: one function a loss, with its source."""
