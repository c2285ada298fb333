"""Sweeps: variants of a config, each with several seeds, and the tables made of them."""
