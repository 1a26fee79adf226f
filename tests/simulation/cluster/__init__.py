"""Tests of simulated clusters."""
