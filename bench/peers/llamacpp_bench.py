#!/usr/bin/env python3
"""llama.cpp's tokens per second, through llama-cpp-python: the counterpart of model_bench.

The file's own weight type is what runs (make_gguf.py writes one file per type); `--dtype` is the
label to print. Prints one JSON object per line. Needs llama-cpp-python and numpy.
"""
import argparse
import ctypes
import json
import time

import numpy as np


class Runner:
    def __init__(self, path, threads, context, sequences):
        import llama_cpp
        self.c = c = llama_cpp
        c.llama_backend_init()
        # llama.cpp's loader is chatty; errors still raise below.
        self.log = c.llama_log_callback(lambda level, text, data: None)
        c.llama_log_set(self.log, ctypes.c_void_p(0))
        self.model = c.llama_model_load_from_file(str(path).encode(),
                                                  c.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = c.llama_context_default_params()
        params.n_ctx = context * sequences
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        if hasattr(params, "kv_unified"):
            params.kv_unified = False
        self.ctx = c.llama_init_from_model(self.model, params)
        if not self.ctx:
            raise SystemExit("llama.cpp cannot make a context")
        self.vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        self.batch = c.llama_batch_init(512, 0, 1)

    def tokens(self, n, seed):
        return [(1000003 * (i + 1) + 7919 * seed) % self.vocab for i in range(n)]

    def clear(self):
        self.c.llama_memory_clear(self.c.llama_get_memory(self.ctx), True)

    def step(self, rows):
        """rows: (token, position, sequence, wants logits)."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            b.token[i], b.pos[i], b.logits[i] = token, position, wanted
            b.n_seq_id[i], b.seq_id[i][0] = 1, sequence
        if self.c.llama_decode(self.ctx, b) != 0:
            raise SystemExit("llama_decode failed")
        self.c.llama_synchronize(self.ctx)

    def run(self, ids, sequence):
        for begin in range(0, len(ids), 512):
            part = ids[begin:begin + 512]
            self.step([(t, begin + i, sequence, i + 1 == len(part)) for i, t in enumerate(part)])

    def argmax(self, i):
        logits = self.c.llama_get_logits_ith(self.ctx, i)
        return int(np.ctypeslib.as_array(logits, (self.vocab,)).argmax())

    def prefill(self, n):
        self.clear()
        ids = self.tokens(n, 1)
        start = time.perf_counter()
        self.run(ids, 0)
        return n / (time.perf_counter() - start)

    def decode(self, batch, context, steps):
        self.clear()
        for s in range(batch):
            self.run(self.tokens(context, s), s)
        ids = [1] * batch
        start = time.perf_counter()
        for step in range(steps):
            self.step([(ids[s], context + step, s, True) for s in range(batch)])
            ids = [self.argmax(s) for s in range(batch)]
        return batch * steps / (time.perf_counter() - start)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("model", help="GGUF file")
    p.add_argument("--dtype", default="file", help="the label to print")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--prefill", default="512,2048")
    p.add_argument("--decode", default="1,8")
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--tokens", type=int, default=64)
    a = p.parse_args()
    lengths = [int(n) for n in filter(None, a.prefill.split(","))]
    batches = [int(b) for b in filter(None, a.decode.split(","))]
    longest = max(lengths + [a.context + a.tokens])
    runner = Runner(a.model, a.threads, longest, max(batches + [1]))
    runner.prefill(64)

    def report(what, size, rates):
        print(json.dumps({"engine": "llama.cpp", "dtype": a.dtype, "what": what, "size": size,
                          "tokens_per_s": rates}), flush=True)

    for n in lengths:
        report("prefill", n, [runner.prefill(n) for _ in range(a.repeat)])
    for b in batches:
        report("decode", b, [runner.decode(b, a.context, a.tokens) for _ in range(a.repeat)])


if __name__ == "__main__":
    main()
