"""Incident response for GPU training clusters: who ran what, and is it true."""

__version__ = "0.1.0"
