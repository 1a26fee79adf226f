"""What texts, pictures and sounds become before a model takes them. It knows no server, no engine and no torch."""
