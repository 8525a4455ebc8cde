# docs/start/ten-minutes.md, in an empty environment.
python page.py
