"""Files of the user: lines of text, documents, pairs, tables and trees."""
