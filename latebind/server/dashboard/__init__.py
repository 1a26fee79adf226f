"""The dashboard: a read-only page that shows what the server does, and the figures behind it."""
