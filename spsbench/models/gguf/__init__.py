"""GGUF files: checked, and kept as folders of safetensors that are models like any other."""
