"""What comes out of a training: folders that `--draft` takes, and the card that goes with them."""
