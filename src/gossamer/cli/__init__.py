# SPDX-License-Identifier: Apache-2.0
"""The command line parses and prints; one file or folder per command.

Start with `gossamer.cli.main`, which finds the command. `shell/` has what all commands share,
`models/` reads MODEL. Nothing here is imported by the rest of the package, and no command imports
torch before it runs, so that `gossamer --help` answers at once.
"""
