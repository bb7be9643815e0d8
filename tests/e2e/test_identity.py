"""Disaggregated = monolithic, token for token."""
import random
import threading

from harness import (Client, Cluster, check, real_entry, tiny_entry, wait_all_free, write_tiny_adapter,
                     write_tiny_model)

NO_CACHE = {"engine": {"prefix_cache": False}}


def book(tokens):
    """`tokens` token ids below 256 or so: text for the byte-level model, varied and seeded."""
    rng = random.Random(7)
    words = "sea lamp keeper storm gull rope tide glass stone north fog bell oil brass stair".split()
    text = ""
    while len(text) < tokens:
        text += rng.choice(words) + rng.choice([" ", " ", ", ", ". "])
    return text[:tokens]


def compare(results, reference, prompts, what):
    for i, (got, want) in enumerate(zip(results, reference)):
        check(got.error is None, f"{what}: prompt of {len(prompts[i])}: {got.code} {got.error}")
        check(list(got.ids) == list(want.ids),
              f"{what}: prompt {i} ({len(prompts[i])} tokens) differs: {got.ids} instead of {want.ids}")


def identity(models, prompts, max_tokens, min_prefix, threads_batched):
    with Cluster() as c:
        p, d, r, client = c.spine(models, decode_extra={**NO_CACHE, "handoff": {"min_prefix_tokens": 64}}, prefill_extra={})
        reference = [client.generate(x, strategy="oracle", max_tokens=max_tokens) for x in prompts]
        check(all(x.finished.usage.transferred_tokens == 0 for x in reference), "oracle took a prefix from a producer")
        alone = [client.generate(x, strategy="raw", max_tokens=max_tokens) for x in prompts]
        compare(alone, reference, prompts, "raw, alone")
        for x, got in zip(prompts, alone):
            expect_transfer = len(x) >= min_prefix + 128
            check(not expect_transfer or got.finished.usage.transferred_tokens > 0,
                  f"a prompt of {len(x)} tokens was not handed off: {got.finished.timing.fallback_reason}")
            if got.finished.usage.transferred_tokens:
                check(got.finished.timing.handoff_bytes > 0 and got.finished.timing.lane, "no bytes or no lane reported")
        batched = client.generate_many(prompts, strategy="raw", max_tokens=max_tokens)
        compare(batched, reference, prompts, "raw, batched")
        # `auto` takes the same path here (equal weights): every third prompt, for the time it takes.
        mixed = client.generate_many(prompts[::3], strategy="auto", max_tokens=max_tokens)
        compare(mixed, reference[::3], prompts[::3], "auto, batched")
        wait_all_free([d])


def scenario_tiny():
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=3)
        text = book(2100).encode()
        lengths = [1, 4, 5, 10, 63, 64, 65, 127, 128, 129, 192, 200, 256, 300, 513, 640, 800, 1024, 1500, 2000]
        identity([tiny_entry(path)], [list(text[i:i + n]) for i, n in enumerate(lengths)], 24, 64, True)


def scenario_real_model():
    with Cluster() as c:
        _, _, r, client = c.spine([real_entry()])
        text_ids = list(client.stub.Tokenize(_tokenize(book(14000)), timeout=60).ids)
    lengths = [10, 37, 64, 65, 100, 127, 128, 129, 150, 200, 255, 256, 257, 300, 400, 513, 640, 777, 1024, 2000]
    prompts = [text_ids[17 * i:17 * i + n] for i, n in enumerate(lengths)]
    check(all(len(p) == n for p, n in zip(prompts, lengths)), "the text is too short")
    identity([real_entry()], prompts, 12, 64, True)


def scenario_q4_real_model():
    """4-bit codes of the real model's K/V: a seventh of the bytes, and still the same first words."""
    with Cluster() as c:
        _, _, r, client = c.spine([real_entry()], decode_extra=NO_CACHE)
        ids = list(client.stub.Tokenize(_tokenize(book(6000)), timeout=60).ids)
        same = 0
        for i, n in enumerate((300, 500, 777, 1024)):
            prompt = ids[17 * i:17 * i + n]
            raw = client.generate(prompt, strategy="raw", max_tokens=4)
            q4 = client.generate(prompt, strategy="q4", max_tokens=4)
            check(q4.finished.timing.strategy == "q4", f"no hand-off: {q4.finished.timing.fallback_reason}")
            transferred = q4.finished.usage.transferred_tokens
            check(transferred == raw.finished.usage.transferred_tokens > 0, "q4 and raw sent other prefixes")
            # fp32 rows: 46,080 bytes a token as they are, 6,840 as codes; the last 128 tokens travel as they are.
            prefix = transferred + 4
            check(q4.finished.timing.handoff_bytes == 128 * 46080 + (prefix - 128) * 6840,
                  f"{q4.finished.timing.handoff_bytes} bytes for a prefix of {prefix}")
            same += list(q4.ids) == list(raw.ids)
        check(same >= 3, f"4-bit codes changed the first words of {4 - same} of 4 prompts")


def scenario_selective_real_model():
    """Layers 9 to 23 computed by the decode node from the producer's stream: of equal weights the tokens of oracle."""
    with Cluster() as c:
        _, _, r, client = c.spine([real_entry()], decode_models=[real_entry(selective_layers="9-23")], decode_extra=NO_CACHE)
        ids = list(client.stub.Tokenize(_tokenize(book(6000)), timeout=60).ids)
        prompts = [ids[17 * i:17 * i + n] for i, n in enumerate((200, 513, 1024))]
        oracle = [client.generate(x, strategy="oracle", max_tokens=12) for x in prompts]
        alone = [client.generate(x, strategy="selective", max_tokens=12) for x in prompts]
        compare(alone, oracle, prompts, "selective, alone")
        for got in alone:
            check(got.finished.timing.strategy == "selective", f"no hand-off: {got.finished.timing.fallback_reason}")
            # Of each row: fp32 K/V of 15 layers, one fp16 row of the stream with its scale.
            row = 15 * 2 * 192 * 4 + 4 + 2 * 576
            prefix = got.finished.usage.transferred_tokens + 4
            check(got.finished.timing.handoff_bytes == prefix * row,
                  f"{got.finished.timing.handoff_bytes} bytes for a prefix of {prefix}")
        batched = client.generate_many(prompts, strategy="selective", max_tokens=12)
        compare(batched, oracle, prompts, "selective, batched")


def _tokenize(text):
    import router_pb2
    return router_pb2.TokenizeRequest(text=text)


def scenario_oracle_after_raw():
    """Approximate KV is never taken for exact: oracle after raw equals a cold oracle, cache on."""
    with Cluster() as c:
        base = write_tiny_model(c.dir / "base", seed=1)
        tuned = write_tiny_model(c.dir / "tuned", seed=2)
        prompt = list(book(500).encode())
        follow = prompt + list(b" and then the lamp went out")
        decode_models = [tiny_entry(tuned, "tuned", base_model="base")]
        p = c.prefill([tiny_entry(base, "base")]).start()
        d = c.decode(decode_models).start()
        r = c.router([d], [p]).start()
        client = Client(r)
        client.wait_ready()
        cold = [client.generate(x, strategy="oracle", max_tokens=20) for x in (prompt, follow)]
        d.stop()
        d.pin_ports()
        d.start()
        client.wait_ready()
        raw = client.generate(prompt, strategy="raw", max_tokens=20)
        check(raw.finished.usage.transferred_tokens > 0, f"nothing was handed off: {raw.finished.timing.fallback_reason}")
        check(list(raw.ids) != list(cold[0].ids), "raw K/V of another model changed nothing: the test proves nothing")
        again = client.generate(prompt, strategy="raw", max_tokens=20)
        check(list(again.ids) == list(raw.ids), "raw from the cache differs from raw cold")
        check(again.finished.usage.cached_tokens > 0, "the second raw request did not use the cache")
        for x, want in zip((prompt, follow), cold):
            got = client.generate(x, strategy="oracle", max_tokens=20)
            check(list(got.ids) == list(want.ids), "oracle after raw differs from a cold oracle")
        back = client.generate(prompt, strategy="raw", max_tokens=20)
        check(back.error is None, "raw after oracle failed")


def scenario_several_models_in_one_node():
    """Two bases and two adapters in one decode node: each answers as it does alone, one base prefill serves the base."""
    with Cluster() as c:
        base = write_tiny_model(c.dir / "base", seed=1)
        other = write_tiny_model(c.dir / "other", seed=2)
        entries = [tiny_entry(base, "base"), tiny_entry(other, "other"),
                   tiny_entry(base, "a", adapter=write_tiny_adapter(c.dir / "a", 5), base_model="base"),
                   tiny_entry(base, "b", adapter=write_tiny_adapter(c.dir / "b", 6), base_model="base")]
        names = [e["name"] for e in entries]
        prompts = [list(book(n).encode()) for n in (50, 400)]
        p = c.prefill([entries[0], entries[1]]).start()
        alone = {}
        for e in entries:
            d = c.decode([e], name=f"alone-{e['name']}").start()
            r = c.router([d], [p], name=f"router-{e['name']}").start()
            client = Client(r)
            client.wait_ready()
            alone[e["name"]] = [list(client.generate(x, model=e["name"], strategy="oracle").ids) for x in prompts]
            check(r.stop() == 0 and d.stop() == 0, "a node did not stop with 0")
        check(len({str(v) for v in alone.values()}) == len(names), "the models do not differ: the test proves nothing")
        d = c.decode(entries, name="together").start()
        r = c.router([d], [p], name="router-together").start()
        client = Client(r)
        client.wait_ready(models=len(names))
        for _ in range(2):
            for strategy in ("oracle", "auto"):
                calls = [(n, i) for n in names for i in range(len(prompts))]
                results = [None] * len(calls)

                def run(k):
                    n, i = calls[k]
                    results[k] = client.try_generate(prompts[i], model=n, strategy=strategy)
                threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                for (n, i), got in zip(calls, results):
                    check(list(got.ids) == alone[n][i], f"{n}, prompt {i}, {strategy}: {got.error or got.ids} instead of {alone[n][i]}")
        raw = client.generate(list(book(600).encode())[::-1], model="a", strategy="raw")
        check(raw.finished.usage.transferred_tokens > 0, f"raw for an adapter: {raw.finished.timing.fallback_reason}")
