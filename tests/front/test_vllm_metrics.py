"""vLLM's names beside Covey's own."""

from __future__ import annotations

from covey.front import vllm_metrics

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
