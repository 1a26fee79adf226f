"""Measures the application on Ray Serve: what it loses, how it scales, what it costs beside a stand-alone server."""
