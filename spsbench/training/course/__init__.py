"""How anything is taught: batches, the loss, acceptance on texts held out, and when to stop."""
