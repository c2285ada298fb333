"""What a training step or a search would cost on devices that are not here."""
