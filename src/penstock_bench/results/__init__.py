"""Results of runs: metrics, records, folders of results, comparisons and the page."""
