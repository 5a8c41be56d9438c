"""Models: found by name, checked before they are loaded, and loaded.

Stands on `heads`, `engines`, `checkpoints` and `hardware`. Read `folder` (a name becomes a checked
folder), `source`, `hub`, `loader`, then `cache` (models that are loaded once), `chat` and the
folders `gguf` and `translation`.
"""
