"""Ways from a prompt to rounds, one file each: this package's loop, or another engine.

Stands on `loop.decoder`, and for servers on `serving`. Read `native`, then `openai` (a server) and
`engine_process` (an engine in a process of its own).
"""
