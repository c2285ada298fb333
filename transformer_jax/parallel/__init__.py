"""How a step runs on the devices that are there."""
