"""The commands `penstock bench` and `penstock trace`: one module a command."""
