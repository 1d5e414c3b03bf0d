"""Load, faults and time against a running service: `make load`, `make soak`; docs/reliability.md says what is checked.

connection, pool     one exchange over one keep-alive connection, and as many of them as there are callers
requests, mixed      bodies as bytes, made once; garbage, leaving, disturbers: who does it wrong
answers              what each request is answered when it is alone, and whether an answer equals that
traffic              callers in closed and open loops, and what each of them saw
prober, probes       a process that asks for the service's health; process, metrics: what the service holds
overload, ...        the scenarios: from a running server to numbers and checks; report prints them
"""
