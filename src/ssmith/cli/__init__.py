"""The command line: one file per verb; nothing heavy is imported before it is needed."""
