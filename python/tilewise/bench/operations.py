"""The operations that are measured, by name. The first one is the default."""

from __future__ import annotations

from tilewise.bench.attention_operation import AttentionOperation
from tilewise.bench.kv_cache_operation import KvCacheOperation
from tilewise.bench.operation import BenchOperation

OPERATIONS: dict[str, BenchOperation] = {each.name: each for each in (AttentionOperation(), KvCacheOperation())}
