"""What the front makes of the server's metrics port: the length of the longest request, though the port may hang, and
vLLM's names beside Covey's own."""

from __future__ import annotations

import asyncio
import time

import pytest

from covey.front import gateway, vllm_metrics
from covey.front.gateway import Longest
from covey_client.errors import ConnectionLost
from tests.fakes import ManualClock

TOLD = b'covey_target_info{pool_tokens="3200",longest="2048"} 1\n'


class Port:
    """A metrics port."""

    def __init__(self) -> None:
        self.asked, self.answer = 0, TOLD
        self.hung = asyncio.Event()
        self.hung.set()

    async def metrics(self) -> bytes:
        self.asked += 1
        await self.hung.wait()
        if not self.answer:
            raise ConnectionLost("no answer")
        return self.answer


async def test_a_length_or_a_failure_is_told_for_ten_seconds() -> None:
    port, clock = Port(), ManualClock()
    told, port.answer = Longest(port.metrics, clock.now), b""
    assert [await told.tokens() for _ in range(3)] == [None] * 3
    assert port.asked == 1
    port.asked, port.answer = 0, TOLD
    clock.sleep(10.1)
    assert await asyncio.gather(*(told.tokens() for _ in range(5))) == [2048] * 5
    clock.sleep(9.9)
    assert (await told.tokens(), port.asked) == (2048, 1)
    clock.sleep(0.2)
    port.hung.clear()
    assert await told.tokens() == 2048, "the last one, while another reading hangs"
    await asyncio.sleep(0)
    assert port.asked == 2


async def test_nobody_waits_in_line_for_a_port_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "WAIT_SECONDS", 0.05)
    port = Port()
    port.hung.clear()
    told, began = Longest(port.metrics), time.monotonic()
    assert await asyncio.gather(*(told.tokens() for _ in range(100))) == [None] * 100
    assert (port.asked, time.monotonic() - began < 2.0) == (1, True)


SAID = b"""# HELP covey_requests_running Requests in the batch
# TYPE covey_requests_running gauge
covey_requests_running{model="covey"} 3
covey_kv_blocks{model="covey",state="used"} 30
covey_kv_blocks{model="covey",state="free"} 90
covey_requests_total{model="covey",outcome="eos"} 5
covey_requests_total{model="covey",outcome="stop"} 2
covey_requests_total{model="covey",outcome="refused"} 9
covey_generation_tokens_total{model="covey"} 16777217
covey_generation_tokens_total{model="draft_chat"} 7
covey_prompt_tokens_total{model="covey"} 40
covey_prefix_cache_hit_tokens_total{model="covey"} 30
covey_request_queue_seconds_bucket{model="covey",le="0.5"} 4
covey_request_queue_seconds_bucket{model="covey",le="+Inf"} 6
covey_request_queue_seconds_sum{model="covey"} 1.5
covey_request_queue_seconds_count{model="covey"} 6
covey_inter_token_gaps_total{model="covey",at_most="0.5"} 4
covey_inter_token_gaps_total{model="covey",at_most="+Inf"} 6
covey_inter_token_gap_seconds_total{model="covey"} 1.5
covey_spec_decode_num_drafts_total{model="covey",drafter="draft_chat"} 4
covey_spec_decode_num_drafts_total{model="covey",drafter="draft_code"} 5
nv_cpu_utilization 0.5
"""


def test_what_means_the_same_has_vllm_s_names() -> None:
    own = '{model_name="covey",engine="0"'
    *lines, blank = vllm_metrics.of(SAID).decode().split("\n")
    assert not blank
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert [line.split()[2] for line in lines if line.startswith("# HELP")] == typed
    assert [line for line in lines if not line.startswith("# HELP")] == [
        "# TYPE vllm:num_requests_running gauge",
        f"vllm:num_requests_running{own}}} 3.0",
        "# TYPE vllm:request_success_total counter",
        f'vllm:request_success_total{own},finished_reason="stop"}} 7.0',
        "# TYPE vllm:generation_tokens_total counter",
        f"vllm:generation_tokens_total{own}}} 16777217.0",
        "# TYPE vllm:prompt_tokens_total counter",
        f"vllm:prompt_tokens_total{own}}} 40.0",
        "# TYPE vllm:prefix_cache_queries_total counter",
        f"vllm:prefix_cache_queries_total{own}}} 40.0",
        "# TYPE vllm:prefix_cache_hits_total counter",
        f"vllm:prefix_cache_hits_total{own}}} 30.0",
        "# TYPE vllm:request_queue_time_seconds histogram",
        f'vllm:request_queue_time_seconds_bucket{own},le="0.5"}} 4.0',
        f'vllm:request_queue_time_seconds_bucket{own},le="+Inf"}} 6.0',
        f"vllm:request_queue_time_seconds_sum{own}}} 1.5",
        f"vllm:request_queue_time_seconds_count{own}}} 6.0",
        "# TYPE vllm:inter_token_latency_seconds histogram",
        f'vllm:inter_token_latency_seconds_bucket{own},le="0.5"}} 4.0',
        f'vllm:inter_token_latency_seconds_bucket{own},le="+Inf"}} 6.0',
        f"vllm:inter_token_latency_seconds_count{own}}} 6.0",
        f"vllm:inter_token_latency_seconds_sum{own}}} 1.5",
        "# TYPE vllm:spec_decode_num_drafts_total counter",
        f"vllm:spec_decode_num_drafts_total{own}}} 9.0",
        "# TYPE vllm:kv_cache_usage_perc gauge",
        f"vllm:kv_cache_usage_perc{own}}} 0.25",
    ]
    assert vllm_metrics.of(b"") == b""
