"""The result tables of the pipeline: names, columns, words and their rules. Needs no Spark."""
