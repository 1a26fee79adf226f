"""Inputs of any length: how much to pad, and with whom; the policies that others use beside those of latebind."""
