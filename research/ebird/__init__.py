"""Ebird's evaluation: batches made on the host, a pool of inputs on the card, elastic batches by concurrent workers."""
