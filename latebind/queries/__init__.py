"""Queries: graphs of models under one deadline, planned again as time is saved (GATI, sections 5.1 and 5.2). Pure."""
