"""What placement and residency gain on simulated clusters, and what the application on Ray Serve loses and costs."""
