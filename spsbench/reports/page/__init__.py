"""The parts of the HTML page: what it says, draws and lets one read."""
