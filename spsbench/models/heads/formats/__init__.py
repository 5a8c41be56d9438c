"""The formats of heads, one file each; `table.py` lists them."""
