"""Command line of seeddelta. Needs the extra `cli`; each command is one module."""
