"""Where each structure breaks on the way to 10^12 samples, 10^6 shards and 10^5 ranks."""
