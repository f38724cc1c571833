#!/bin/sh
# A model that is made from a config with options writes the options into that config.
#
# Expected: AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.bfloat16) makes one such
#   model, and the config stays what it was, as it does when from_pretrained gets the same options with a config.
# Seen: the caller's config has both afterwards. A model that was made from it before says of itself that it is eager and
#   bfloat16, while its weights are float32, and a model that is made from it later, without options, is eager and
#   bfloat16. So the order in which models of a comparison are made decides their numbers.
# Source: modeling_utils.py, _from_config: config.dtype = dtype, config._attn_implementation = ..., without a copy;
#   from_pretrained: copy.deepcopy(config), "We do not want to modify the config inplace in from_pretrained".
# Versions: transformers 5.24.0, torch 2.14.1, on a CPU.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet transformers==5.24.0 torch==2.14.1
"$folder/venv/bin/python" - <<'END'
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

print("transformers", transformers.__version__, "torch", torch.__version__)
config = AutoConfig.for_model(
    "llama", vocab_size=29, hidden_size=16, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=1,
    intermediate_size=20,
)


def said(model):
    return model.config._attn_implementation, str(model.config.dtype), str(next(model.parameters()).dtype)


first = AutoModelForCausalLM.from_config(config)
before = said(first)
AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.bfloat16)
after = said(first)
last = said(AutoModelForCausalLM.from_config(config))
print("first model, before and after another was made:", before, after)
print("a later model, without options:", last)
print("the caller's config:", config._attn_implementation, config.dtype)
assert before[0] == "sdpa" and before[2] == "torch.float32"
assert after == ("eager", "torch.bfloat16", "torch.float32")
assert last == ("eager", "torch.bfloat16", "torch.bfloat16")
END
