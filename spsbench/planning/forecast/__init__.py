"""What speculation would cost and gain: arithmetic over what was measured and recorded."""
