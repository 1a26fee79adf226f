"""Learned caches (GATI): small networks after stages that answer easy requests early. Models in memory: residency."""
