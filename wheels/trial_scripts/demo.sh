# From the wheel to something to see.
pip install penstock
penstock demo
