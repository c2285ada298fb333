"""Checkpoints: written whole or not at all, compared with their checksums when read."""
