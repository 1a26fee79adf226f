"""What peers serve: each file runs in the virtual environment of its peer and imports nothing of latebind."""
