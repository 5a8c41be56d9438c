"""Ways to draft and to verify, and how those of a cell are put together."""
