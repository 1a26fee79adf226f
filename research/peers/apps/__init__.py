"""Applications that peers serve: each file runs in its peer's virtual environment and imports nothing of latebind."""
