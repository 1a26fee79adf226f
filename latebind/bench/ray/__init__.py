"""The application on Ray Serve, measured: what it loses, how it scales, what it costs beside one machine alone."""
