"""Learned caches compared with their baselines, and without their parts (GATI, section 7.1 and appendix A.2.1)."""
