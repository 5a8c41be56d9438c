"""Prompts to continue, and what their texts are worth: scores, and verdicts on programs."""
