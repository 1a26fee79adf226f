"""Elastic batching (Ebird): large and small batches at the same time, beside what waits until a batch is full."""
