"""One file per result table: what a row means and how it is computed from the ledger.

raw files → operations → operation_counts → usage, latency, activity
                       → message_days → backlog_time, arrivals, messages → verdicts, anomalies
"""
