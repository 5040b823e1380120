"""Files that are written: whole or not at all, and parts of long work that a later run goes on from."""
