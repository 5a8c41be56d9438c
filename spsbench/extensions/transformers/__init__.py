"""Inside transformers: this package's loop under the `generate` of a user's own model."""
