"""The simulator: what a job of many nodes would take, worked out instead of run."""
