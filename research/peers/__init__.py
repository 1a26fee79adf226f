"""Compares latebind with other servers on this machine, behind the same client."""
