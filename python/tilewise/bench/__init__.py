"""Measures Tilewise beside other attention libraries on the same tensors.

`python -m tilewise.bench` is the command (cli.py); the modules below it are also what the
scripts in the repository's bench/ folder are made of.
"""
