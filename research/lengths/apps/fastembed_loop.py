"""fastembed in a loop, as its users call it. Run as `fastembed_loop.py FOLDER`, a folder with `model.onnx`.

Each line of its input is a JSON list of texts, which are embedded at once; its answer is the seconds and the vectors.
"""

import json
import sys
import time

from fastembed import TextEmbedding

NAME = "sentence-transformers/all-MiniLM-L6-v2"  # whose pooling and prompts it takes
THREADS = 2

if __name__ == "__main__":
    model = TextEmbedding(NAME, threads=THREADS, specific_model_path=sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        texts = json.loads(line)
        begun = time.perf_counter()
        found = list(model.embed(texts, batch_size=16))
        taken = time.perf_counter() - begun
        print(json.dumps([taken, [row.tolist() for row in found]]), flush=True)
