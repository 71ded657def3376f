"""Turns one shard into another inside a worker process: the datatrove steps, and the worker.

Runs as `python -m marin_dagster.data.shard_steps WORK FAILURE TASK…`; `pipeline.run_tasks` starts it.
"""
