"""GGUF files: checked, and unpacked to folders of safetensors that are ordinary models."""
