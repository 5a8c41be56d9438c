"""One plug-in of each kind, as a package of yours would have them."""
