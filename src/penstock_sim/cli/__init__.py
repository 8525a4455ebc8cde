"""The commands `penstock simulate`, `plan` and `schedule`: one module a command."""
