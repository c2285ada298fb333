"""Cost of a training step or a search on devices that are not here."""
