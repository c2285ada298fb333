"""The user's own files, read lazily."""
