"""Learned caches (GATI): small networks behind stages that answer easy requests early. Models in memory: residency."""
