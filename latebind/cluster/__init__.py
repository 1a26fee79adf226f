"""The application on Ray Serve: an ingress, and replicas with an engine each, which Ray starts, heals and scales."""
