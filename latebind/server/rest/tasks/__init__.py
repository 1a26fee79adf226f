"""The endpoints of people's tools for what a model is for, in the forms of OpenAI, Cohere, Jina, TEI and vLLM."""
