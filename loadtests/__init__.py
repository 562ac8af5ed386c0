"""Open-loop load with honest latencies, Locust users, and benches against other brokers.

Load: a schedule says when each message is due; latency counts from there. A figure is judged by both ends of what it
may be (``trace.judgement``): what was due and never answered counts as the worst, the generator's own lateness and
ceiling as the best. Every sample names its workload, queue and protocol, every target which of them it judges; no
figure mixes two.
"""
