"""HTML pages for people, of the simulator and the benchmark: one file each that needs nothing else.

`words` writes numbers, `scale` and `chart` lay charts out, `templates` holds the pages and how
charts are drawn, and `document` makes the file of them.
"""
