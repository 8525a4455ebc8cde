"""Networks of nodes: traffic, routed networks, and the bandwidth left under load."""
