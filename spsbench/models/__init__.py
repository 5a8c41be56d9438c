"""Models: found, checked before they are loaded, and loaded."""
