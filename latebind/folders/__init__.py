"""Models as Hugging Face saves them, built into model directories. Only here is transformers imported, and late."""
