"""The shell: verbs and their flags, results on stdout, all else on stderr."""
