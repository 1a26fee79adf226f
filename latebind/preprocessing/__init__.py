"""Converts texts, pictures and sounds to a model's inputs. It imports no server, engine or torch."""
