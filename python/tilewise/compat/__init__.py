# Other libraries' attention over Tilewise, one module each. Nothing is imported here: most of them need torch.
"""Drop-ins: other libraries' attention functions, with their own signatures and conventions."""
