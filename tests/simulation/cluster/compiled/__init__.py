"""Tests of the compiled simulation of a cluster."""
