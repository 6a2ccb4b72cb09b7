"""Script: many requests in one process, each by the product's own script; vLLM takes 10 s to start.

python read_many.py READ.py ENGINE REQUESTS.json ANSWERS.json
"""

import gc
import importlib.util
import json
import sys
import traceback


def main() -> None:
    spec = importlib.util.spec_from_file_location("script", sys.argv[1])
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with open(sys.argv[3]) as file:
        requests = json.load(file)
    answers = []
    for request in requests:
        try:
            answers.append(script.READERS[sys.argv[2]](request))
        except Exception:
            answers.append({"stderr": traceback.format_exc()})
        gc.collect()
        if "vllm" in sys.modules:
            from vllm.distributed import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()
    with open(sys.argv[4], "w") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main()
