"""spsbench: the laboratory for speculative sampling."""
