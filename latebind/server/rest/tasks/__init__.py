"""Endpoints in the APIs of other tools, by a model's task: OpenAI, Cohere, Jina, TEI and vLLM."""
