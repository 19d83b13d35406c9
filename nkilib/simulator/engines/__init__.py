"""The instructions, in a package for each engine; ``api/isa.py`` names them all."""
