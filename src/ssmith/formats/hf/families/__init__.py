"""One file per model_type: its settings and weight names, both ways."""
