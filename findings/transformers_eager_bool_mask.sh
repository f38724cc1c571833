#!/bin/sh
# A boolean attention mask of four dimensions is right by SDPA and wrong by eager attention, without an error.
#
# Expected: the implementation of attention is a choice of speed; an already prepared mask, which the library's
#   masking functions return "as-is", means the same to all. In torch's SDPA, and in the library's own masks for it,
#   True says that a position is seen.
# Seen: eager attention adds the mask to the scores, so True counts 1 and False 0, and no position is hidden. The
#   logits of a causal Llama with a causal boolean mask are those without a mask to the bit by SDPA, and differ by 0.02
#   by eager attention, where the largest logit is 0.28: tokens see the future.
# Source: models/llama/modeling_llama.py, eager_attention_forward: attn_weights + attention_mask; masking_utils.py:
#   "already prepared 4D mask, in which case it is returned as-is".
# Versions: transformers 5.24.0, torch 2.14.1, on a CPU.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0 torch==2.14.1
"$folder/venv/bin/python" - <<'END'
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__)
sizes = {"vocab_size": 29, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 1, "intermediate_size": 20}
tokens = torch.randint(29, (1, 6), generator=torch.Generator().manual_seed(0))
changed = tokens.clone()
changed[0, -1] = (changed[0, -1] + 1) % 29
seen = torch.ones(6, 6, dtype=torch.bool).tril()[None, None]
off, future = {}, {}
for attention in ("sdpa", "eager"):
    torch.manual_seed(0)
    model = LlamaForCausalLM._from_config(LlamaConfig(**sizes), attn_implementation=attention).eval()
    with torch.no_grad():
        plain, masked, other = (model(x, attention_mask=mask).logits
                                for x, mask in ((tokens, None), (tokens, seen), (changed, seen)))
    off[attention] = float((masked - plain).abs().max())
    future[attention] = float((other - masked)[:, :-1].abs().max())
print("logits with the mask against those without:", off)
print("earlier logits change with the last token by:", future)
assert off["sdpa"] < 1e-6 and future["sdpa"] < 1e-6
assert off["eager"] > 1e-3 and future["eager"] > 1e-3
END
