"""Models in less memory than they take, on engines: a trace, a crowd of clients, cold starts, what stays behind."""
