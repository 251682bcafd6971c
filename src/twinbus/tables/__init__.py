"""The result tables of the pipeline: names, columns and words, and the rules behind them. No Spark."""
