# transformers' own command, in a process that has "tilewise" registered.
"""python -m tilewise.transformers COMMAND ...: the command `transformers`, which takes "tilewise" for attention."""

from __future__ import annotations

from transformers.cli.transformers import main

from tilewise.transformers.serving import install_command_line

if __name__ == "__main__":
    install_command_line()
    main()
