"""Pages of a model's inside: each is one HTML file that needs no network and no other file."""
