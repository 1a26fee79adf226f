"""Latebind beside other servers, on this machine, behind the same client."""
