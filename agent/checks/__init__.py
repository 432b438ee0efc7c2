"""One file for each thing that a spot audit of a node looks at."""
