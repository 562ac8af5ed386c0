"""Durable storage behind the Disk interface: batches, segments, partition logs, pending-entry logs."""
