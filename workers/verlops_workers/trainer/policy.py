"""The network under training: a causal LM, a value head, sharded by FSDP2.

``Network.forward`` returns log-probabilities, entropies and values of response tokens;
everything goes through forward, because FSDP2 gathers parameters around it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM

from verlops_workers.trainer.rows import Rows


class Outputs(NamedTuple):
    """Of response tokens, [b, t]; garbage where the mask is 0."""

    logprobs: Tensor
    entropies: Tensor
    values: Tensor


class Network(nn.Module):
    """A causal LM with a linear value head on its last hidden state."""

    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        self.lm = lm
        hidden = lm.config.get_text_config().hidden_size  # type: ignore[union-attr, operator]
        self.value = nn.Linear(hidden, 1)
        # Values start at 0: an untrained critic must not invent advantages.
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, rows: Rows) -> Outputs:
        """Log-probability, entropy and value of each response token."""
        out: Any = self.lm(
            input_ids=rows.ids,
            attention_mask=rows.attention,
            position_ids=rows.positions,
            output_hidden_states=True,
            use_cache=False,
        )
        logits = _pick(out.logits, rows.sources).float()
        hidden = _pick(out.hidden_states[-1], rows.sources)
        logs = torch.log_softmax(logits, dim=-1)
        chosen = logs.gather(-1, rows.targets[..., None]).sum(-1)
        entropies = -(logs.exp() * logs).sum(-1)
        return Outputs(chosen, entropies, self.value(hidden.to(self.value.weight.dtype)).sum(-1))


def load_network(path: str | Path, *, trust_remote_code: bool = False) -> Network:
    """A network from a model folder, in fp32 (the master weights), without dropout."""
    lm = AutoModelForCausalLM.from_pretrained(
        str(path), dtype=torch.float32, trust_remote_code=trust_remote_code
    )
    return Network(lm).eval()


def shard(network: Network, mesh: DeviceMesh, *, bf16: bool) -> None:
    """Shard each decoder layer and the rest, in place."""
    policy = MixedPrecisionPolicy()
    if bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in decoder_layers(network.lm):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(network, mesh=mesh, mp_policy=policy)


def decoder_layers(lm: nn.Module) -> list[nn.Module]:
    """The blocks that transformers says must not be split, else the longest module list."""
    names = set(getattr(lm, "_no_split_modules", None) or ())
    found = [m for m in lm.modules() if type(m).__name__ in names]
    if found:
        return found
    lists = [m for m in lm.modules() if isinstance(m, nn.ModuleList)]
    return list(max(lists, key=len, default=nn.ModuleList()))


def _pick(values: Tensor, sources: Tensor) -> Tensor:
    """Values [b, l, d] at positions [b, t] → [b, t, d]."""
    index = sources[..., None].expand(-1, -1, values.shape[-1])
    return values.gather(1, index)
