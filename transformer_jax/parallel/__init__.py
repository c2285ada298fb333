"""How a step runs on the devices, and in the processes, that are there."""
