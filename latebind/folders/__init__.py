"""Builds models as Hugging Face saves them. transformers is imported only here, and lazily."""
