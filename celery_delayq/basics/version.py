"""The version, in a module without imports so that setuptools can read it."""

__version__ = "0.2.0.dev0"
