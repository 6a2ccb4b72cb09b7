"""The name under which stock models and transformers' mask functions take a cache of keys and values."""

import inspect

from transformers.masking_utils import create_causal_mask

#: "cache" from transformers 5.24 on, which warns of the name before that, "past_key_values".
CACHE = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"
