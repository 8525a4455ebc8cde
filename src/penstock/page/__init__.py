"""Pages for people: one HTML file that needs nothing else. Of the simulator and the benchmark.

`svg` and `chart` draw, `words` writes numbers, `document` makes the file, of them and one style
sheet.
"""
