"""Reports: a static site, JUnit, Markdown and a badge from the results of runs. Reads schemas only, drives nothing."""
