"""The application on Ray Serve: an ingress, and replicas with an engine each. Ray starts, restarts and scales them."""
