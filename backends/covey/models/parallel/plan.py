"""The part of a model that a rank holds, as far as its configuration tells: heads by the plan of its class.

`base_model_tp_plan` names a style for each kind of matrix. Knows nothing of weights, processes or devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covey.contracts.errors import UnsupportedModel
from covey.models.alibi import alibi_of
from covey.models.attention import Shape

CUT_ROWS = "colwise"  # named for the columns of the transposed matrix: every rank has some of the results
CUT_COLUMNS = "rowwise"  # every rank has a part of the sum
GATHERED = ("colwise_gather_output", "colwise_rep")
SPLIT_INPUT = ("rowwise_split_input", "rowwise_rep")
WHOLE = ("replicate", "replicated_with_grad_allreduce")

_KEYS = ("k_proj", "qkv_proj", "query_key_value")  # matrices that make keys, alone or with queries and values


def heads_of(config: Any) -> Shape:
    """Return the shape of one layer's attention of the whole model."""
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if config.model_type == "falcon":  # has words of its own
        kv_heads = config.num_kv_heads if config.new_decoder_architecture else 1 if config.multi_query else heads
    head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Shape(heads, kv_heads, head_dim, alibi_of(config))


def share_of_heads(folder: Path, config: Any, ranks: int) -> Shape:
    """Return the shape of a layer's attention on each of `ranks` ranks. Raises UnsupportedModel, which says why not."""
    whole = heads_of(config)
    if ranks == 1:
        return whole
    styles = base_plan(folder, config)
    if not any(path.rsplit(".", 1)[-1] in _KEYS and style == CUT_ROWS for path, style in styles.items()):
        return whole  # the plan leaves attention whole on every rank
    for name, count in (("key heads", whole.kv_heads), ("heads", whole.heads)):
        if count % ranks:
            raise UnsupportedModel(
                f"{folder}: {count} {name} cannot be spread over {ranks} devices: target.tensor_parallel must divide it"
            )
    return Shape(whole.heads // ranks, whole.kv_heads // ranks, whole.head_dim)


def base_plan(folder: Path, config: Any) -> dict[str, str]:
    """Return styles by path below the base model, * being a layer's number. Raises UnsupportedModel if no plan fits."""
    plan = getattr(config, "base_model_tp_plan", None)
    if not plan:
        raise UnsupportedModel(
            f"{folder}: tensor parallelism is not supported for {config.model_type}: its class has no plan "
            "(base_model_tp_plan); set target.tensor_parallel to 1"
        )
    strange = sorted(set(plan.values()) - {CUT_ROWS, CUT_COLUMNS, *GATHERED, *SPLIT_INPUT, *WHOLE})
    if strange:
        raise UnsupportedModel(
            f"{folder}: tensor parallelism is not supported for {config.model_type}: its plan needs {strange[0]}; "
            "set target.tensor_parallel to 1"
        )
    return dict(plan)
