"""Sweeps: experiments of several configs and seeds, and their tables."""
