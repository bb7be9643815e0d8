"""A prefill and a decode node as a pair: what is reused, what fits, restarts, aborts, what the metrics say."""
import http.client
import json
import pathlib
import random
import threading
import time
import urllib.error
import urllib.request

import grpc

from harness import (Client, Cluster, check, pages_in_use, strict_metrics, tiny_entry, wait_for, write_tiny_adapter,
                     write_tiny_gguf, write_tiny_model)

NO_CACHE = {"engine": {"prefix_cache": False}}
QUICK = {"health": {"interval": "100ms"}}


def prompt_of(n, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(97, 123) for _ in range(n)]


def post(router, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{router.ports['http']}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def scenario_reuse():
    """Cases pfx-01, pfx-04 and pd-09: reuse changes no answer, and what was reused is told truly."""
    with Cluster() as c:
        base, tuned = write_tiny_model(c.dir / "base", seed=1), write_tiny_model(c.dir / "tuned", seed=2)
        # Two adapters of very different rank in one node (case lora-05: the second one's size is not the first one's).
        models = [tiny_entry(base, "base"), tiny_entry(tuned, "tuned", base_model="base"),
                  tiny_entry(base, "a", adapter=write_tiny_adapter(c.dir / "a", 5, rank=8), base_model="base"),
                  tiny_entry(base, "b", adapter=write_tiny_adapter(c.dir / "b", 6, rank=64), base_model="base")]
        p = c.prefill(models[:1]).start()
        cold_p = c.prefill(models[:1], name="cold-p", **NO_CACHE).start()
        d = c.decode(models).start()
        alone = [c.decode([m], name=f"alone-{m['name']}", **NO_CACHE).start() for m in models]
        r = c.router([d], [p]).start()
        cold_r = c.router(alone, [cold_p], name="cold-router").start()
        client, cold = Client(r), Client(cold_r)
        names = [m["name"] for m in models]
        client.wait_ready(models=4)
        cold.wait_ready(models=4)
        # pfx-01: one prompt for everybody, in two orders, twice; the reference reuses nothing and has one model a node.
        prompts = [prompt_of(64, 1), prompt_of(300, 2)]
        want = {(n, s, i): list(cold.generate(x, model=n, strategy=s).ids)
                for n in names for s in ("auto", "raw") for i, x in enumerate(prompts)}
        check(len({str(want[n, "auto", 1]) for n in names}) == 4, "the models do not differ: the test proves nothing")
        for order in (names, names[::-1]):
            for _ in range(2):
                for n in order:
                    for s in ("raw", "auto"):
                        for i, x in enumerate(prompts):
                            got = client.generate(x, model=n, strategy=s)
                            # raw is the least that is asked for: what the model itself computed meanwhile is better.
                            allowed = [want[n, "auto", i]] + [want[n, "raw", i]] * (s == "raw")
                            check(list(got.ids) in allowed, f"{n}, {s}, prompt {i}: {got.ids} instead of {allowed}")
        # pfx-04: the whole prompt is cached; then a longer one goes on from it.
        for n in (128, 150):
            for max_tokens in (1, 8):
                x = prompt_of(n, 10 + n + max_tokens)

                def score():
                    q = client.request(x, model="base", strategy="auto", max_tokens=max_tokens, logprobs=True, top_logprobs=3)
                    events = list(client.stub.Generate(q, timeout=60))
                    check(events[-1].HasField("finished"), "no end")
                    return [l for e in events for l in e.delta.logprobs], events[-1].finished.usage
                (first, cold_usage), (second, usage) = score(), score()
                check(len(first) == max_tokens and first == second, f"{n}/{max_tokens}: the second reply differs")
                check(cold_usage.cached_tokens == 0 and usage.cached_tokens == (n - 1) // 64 * 64, f"{n}: {usage}")
                longer = client.generate(x + prompt_of(70, 3), model="base")
                reference = cold.generate(x + prompt_of(70, 3), model="base", strategy="oracle")
                check(list(longer.ids) == list(reference.ids), f"{n}: the prompt that goes on from a cached one differs")
                check(longer.finished.usage.cached_tokens == n // 64 * 64, f"{n}: {longer.finished.usage}")
        counts_across_the_pair(p, d, r, client)


def counts_across_the_pair(p, d, r, client):
    """Case pd-09. The rule: cached_tokens are those in the decode node's cache, whole blocks; what a prefill node sent are
    transferred_tokens; at least the last token and positions 0-3 of a handed-off prefix are computed by the decode node."""
    def by_grpc(x, model, s):
        got = client.generate(x, model=model, strategy=s, shared=64, max_tokens=4)
        u = got.finished.usage
        return u.prompt_tokens, u.cached_tokens, u.transferred_tokens, got.finished.timing.producer_cached_tokens

    def by_http(stream):
        def ask(x, model, s):
            body = {"model": model, "prompt": x, "strategy": s, "shared_prefix_tokens": 64, "max_tokens": 4, "temperature": 0}
            if not stream:
                usage = post(r, "/v1/completions", body)[1]["usage"]
            else:
                body.update(stream=True, stream_options={"include_usage": True})
                request = urllib.request.Request(f"http://127.0.0.1:{r.ports['http']}/v1/completions", json.dumps(body).encode(),
                                                 {"Content-Type": "application/json"})
                with urllib.request.urlopen(request, timeout=60) as reply:
                    lines = [x[6:] for x in reply.read().decode().splitlines() if x.startswith("data: {")]
                usage = next(u for u in (json.loads(x).get("usage") for x in lines) if u)
            details = usage["prompt_tokens_details"]
            return usage["prompt_tokens"], details["cached_tokens"], details["transferred_tokens"], None
        return ask
    for seed, ask in ((100, by_grpc), (200, by_http(False)), (300, by_http(True))):
        x = prompt_of(100, seed)
        hits, producer_hits = (n.metric("baton_prefix_cache_hits_tokens_total") for n in (d, p))
        cold, again, shares = ask(x, "base", "raw"), ask(x, "base", "raw"), ask(x[:64] + prompt_of(36, seed + 1), "base", "raw")
        check(cold[:3] == (100, 0, 60), f"cold: {cold}")
        check(again[:3] == (100, 64, 0), f"again: {again}")
        check(shares[:3] == (100, 64, 0), f"64 tokens shared: {shares}")
        check(p.metric("baton_prefix_cache_hits_tokens_total") == producer_hits, "the producer counts hits for cold prompts")
        # Another consumer: its own cache has nothing, the producer's has.
        other = ask(x, "tuned", "raw")
        check(other[:3] == (100, 0, 60) and other[3] in (None, 64), f"another consumer: {other}")
        check(p.metric("baton_prefix_cache_hits_tokens_total") == producer_hits + 64, "the producer's own count")
        check(d.metric("baton_prefix_cache_hits_tokens_total") == hits + 128, "the decode node's count is not what clients were told")


def change_json(folder, name, **changes):
    f = pathlib.Path(folder) / name
    f.write_text(json.dumps({**json.loads(f.read_text()), **changes}))


def scenario_pairs_that_do_not_fit():
    """Cases pd-06 and yml-04: a pair that differs in one item is refused by name and not ready where a partner is demanded."""
    with Cluster() as c:
        good = write_tiny_model(c.dir / "good", seed=5)
        vocab = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        rope = write_tiny_model(c.dir / "rope", seed=5)
        change_json(rope, "config.json", rope_theta=5000.0)
        variants = [
            ("weights", "weights_digest", tiny_entry(write_tiny_model(c.dir / "weights", seed=6))),
            ("tokenizer", "tokenizer_digest", tiny_entry(write_tiny_model(c.dir / "tokenizer", seed=5, vocab_extra=vocab[::-1]))),
            ("kv_dtype", "layout.dtype: want fp32, have bf16", {**tiny_entry(good), "kv_dtype": "bf16"}),
            ("weight_dtype", "weights_digest", {**tiny_entry(good), "weight_dtype": "bf16"}),
            ("layers", "layout.layers: want 3, have 4", tiny_entry(write_tiny_model(c.dir / "layers", seed=5, layers=4))),
            ("kv_heads", "layout.kv_heads: want 2, have 1", tiny_entry(write_tiny_model(c.dir / "kv", seed=5, kv_heads=1))),
            ("head_dim", "layout.head_dim: want 16, have 32", tiny_entry(write_tiny_model(c.dir / "dim", seed=5, head_dim=32))),
            ("rope", "layout.rope: want theta=10000", tiny_entry(rope)),
            ("base", "it runs 'other'", tiny_entry(good, "other")),
        ]
        prefills = [c.prefill([entry], name=f"p-{name}") for name, _, entry in variants]
        for node in prefills:
            node.start(wait=False)
        d = c.decode([tiny_entry(good)], handoff={"min_prefix_tokens": 64}, **NO_CACHE).start()
        lazy = c.decode([tiny_entry(good)], name="lazy", handoff={"strategy": "oracle"}).start()
        for node in prefills:
            node.wait_ports()
        demanding = [c.router([d], [node], name=f"r-{node.name}", **QUICK) for node in prefills]
        for node in demanding:
            node.config["nodes"]["require_prefill"] = True
            node.start(wait=False)
        r = c.router([d], prefills, **QUICK).start()
        unused = c.router([lazy], [prefills[0]], name="unused", **QUICK).start()
        client = Client(r)
        client.wait_ready()
        x = prompt_of(400, 1)
        want = client.generate(x, strategy="oracle")
        got = wait_for(lambda: (lambda g: g if g.finished.timing.fallback_reason.count("; prefill node") >= len(prefills) - 1
                                and "does not answer" not in g.finished.timing.fallback_reason else None)(
            client.generate(x, strategy="raw")), 20, "the router to know all prefill nodes")
        check(list(got.ids) == list(want.ids) and got.finished.usage.transferred_tokens == 0, "took K/V of a node that does not fit")
        for (name, item, _), node, router in zip(variants, prefills, demanding):
            router.wait_ports()
            for text in (item, f"prefill node {node.address}"):
                check(text in got.finished.timing.fallback_reason, f"{name}: no '{text}' in {got.finished.timing.fallback_reason}")
            wait_for(lambda router=router, item=item: item in router.log(), 10, f"router {router.name} to say '{item}'")
            try:
                router.http("/readyz")
                check(False, f"{name}: ready although no prefill node fits")
            except urllib.error.HTTPError as e:
                check(e.code == 503, f"{name}: /readyz says {e.code}")
        check(d.metric("baton_prefixes_total", where="local") == 2, "local prefill is not counted")
        # A node that fits makes the demanding router ready, and prefixes travel.
        fits = prefills[0]
        fits.pin_ports()
        fits.stop()
        fits.config["models"] = [tiny_entry(good)]
        fits.start()

        def ready():
            try:
                return demanding[0].http("/readyz")
            except urllib.error.HTTPError:
                return None
        wait_for(ready, 20, "the demanding router to be ready")
        got = Client(demanding[0]).generate(x, strategy="auto")
        check(got.finished.usage.transferred_tokens > 0, f"no hand-off: {got.finished.timing.fallback_reason}")
        check(list(got.ids) == list(want.ids), "other tokens")
        check(d.metric("baton_prefixes_total", where="remote") == 1, "remote prefill is not counted")
        # yml-04: this decode node may use no prefill node unless a request says so.
        wait_for(lambda: "none may be used" in unused.log() and "handoff.strategy" in unused.log(), 10,
                 "a warning about prefill nodes that nobody may use")
        wait_for(lambda: "may use a prefill node now" in demanding[0].log(), 10, "a line about the pair that fits now")
        check("none may be used" not in demanding[0].log().split("may use a prefill node now")[-1], "a warning about a good pair")


def scenario_restarts():
    """Cases pd-07 and str-10: nodes are killed and come back at the same address; a stream whose node dies ends in an error."""
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=5)
        p = c.prefill([tiny_entry(path)]).start()
        d = c.decode([tiny_entry(path)], handoff={"min_prefix_tokens": 64}, **NO_CACHE).start()
        p.pin_ports()
        d.pin_ports()
        r = c.router([d], [p], **QUICK).start()
        impatient = c.router([d], [p], name="impatient", retry={"max_attempts": 1}).start()
        client, other = Client(r), Client(impatient)
        client.wait_ready()
        other.wait_ready()
        x = prompt_of(500, 1)
        want = list(client.generate(x, strategy="oracle").ids)
        check(client.generate(x, strategy="raw").finished.usage.transferred_tokens > 0, "no hand-off to begin with")
        for round_ in range(2):
            for node in (p, d):
                node.kill()
                node.start()
                wait_for(lambda node=node: r.metric("baton_node_state", node=node.address, state="active") == 1, 5,
                         f"the router to see {node.name} again")
                slowest, handed_off = 0, 0
                for _ in range(20):
                    started = time.monotonic()
                    got = client.generate(x, strategy="raw", timeout=20)
                    slowest = max(slowest, time.monotonic() - started)
                    check(list(got.ids) == want, f"other tokens after {node.name} restarted")
                    handed_off += got.finished.usage.transferred_tokens > 0
                check(slowest < 5, f"after {node.name} restarted a request took {slowest:.1f} s")
                # The first may find a channel that waits before it connects again.
                check(handed_off >= 15, f"after {node.name} restarted only {handed_off} of 20 were handed off")
        died_mid_stream(d, impatient, other)


def died_mid_stream(d, router, client):
    """Case str-10: the decode node is killed after five deltas of a gRPC and of an SSE stream."""
    x = prompt_of(64, 2)
    reference = client.generate(x, max_tokens=400)
    tokens, text, status = [], "", []
    five = threading.Barrier(3)

    def by_grpc():
        deltas = 0
        try:
            for event in client.stub.Generate(client.request(x, max_tokens=3000), timeout=60):
                check(not event.HasField("finished"), "a stream whose node died has an end")
                tokens.extend(event.delta.token_ids)
                deltas += 1
                if deltas == 5:
                    five.wait(30)
        except grpc.RpcError as e:
            status.append(e)
    thread = threading.Thread(target=by_grpc)
    thread.start()
    body = {"model": "tiny", "prompt": x, "max_tokens": 3000, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"http://127.0.0.1:{router.ports['http']}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        raw = b""
        while raw.count(b"\n\n") < 5:
            raw += reply.read1()
        killer = threading.Thread(target=lambda: (five.wait(30), d.kill()))
        killer.start()
        five.wait(30)
        try:
            raw += reply.read()
        except http.client.IncompleteRead as e:  # the stream did not end as a whole one does
            raw += e.partial
    thread.join()
    killer.join()
    check(len(status) == 1 and status[0].code() == grpc.StatusCode.UNAVAILABLE and status[0].details(), f"gRPC: {status}")
    check(len(tokens) >= 5 and tokens[:400] == list(reference.ids)[:len(tokens)], "the deltas already sent are wrong")
    check(raw.endswith(b"\n\n"), f"the last event is open: {raw[-200:]}")
    events = [e for e in raw.decode().split("\n\n") if e and not e.startswith(":")]
    check(all(e.startswith("data: ") for e in events), f"not an event: {events[-2:]}")
    parsed = [json.loads(e[6:]) for e in events]
    check("error" in parsed[-1] and parsed[-1]["error"]["message"], f"no error at the end: {parsed[-1]}")
    check(sum("error" in e for e in parsed) == 1, "more than one error event")
    check(not any(ch.get("finish_reason") for e in parsed[:-1] for ch in e["choices"]), "a finish_reason before the error")
    text = "".join(ch["text"] for e in parsed[:-1] for ch in e["choices"])
    check(len(text) >= 5 and (text.startswith(reference.text) or reference.text.startswith(text)), "the text already sent is wrong")


def scenario_aborts_and_metrics():
    """Cases pd-01, met-01 and met-03: aborts give everything back within a second, and the metrics say what clients saw."""
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=9)
        p = c.prefill([tiny_entry(path)], env={"BATON_FAULTS": "producer.after_layer=delay:15"}, **NO_CACHE).start()
        d = c.decode([tiny_entry(path)], handoff={"min_prefix_tokens": 64}, engine={"prefix_cache": False, "max_running": 1},
                     env={"BATON_FAULTS": "engine.step=delay:5"}).start()
        wide = c.decode([tiny_entry(path)], name="wide", handoff={"min_prefix_tokens": 64}, **NO_CACHE).start()
        r, r2 = c.router([d], [p]).start(), c.router([wide], [p], name="wide-router").start()
        client, narrow = Client(r2), Client(r)
        client.wait_ready()
        narrow.wait_ready()
        abort_many(p, wide, r2, client)
        time_to_first_token(d, r, narrow)
        for node in (p, d, wide, r, r2):
            strict_metrics(node.http("/metrics"))


def abort_many(p, d, r, client, total=200):
    counted = threading.Semaphore(0)

    def leave(seed):
        rng = random.Random(seed)
        for i in range(total // 8):
            call = client.stub.Generate(client.request(prompt_of(900, seed * 1000 + i), strategy="raw"), timeout=60)
            time.sleep(rng.uniform(0, 0.02))
            call.cancel()
            try:
                check(not any(e.delta.token_ids for e in call), "a token came before its prefix could")
            except grpc.RpcError as e:
                check(e.code() == grpc.StatusCode.CANCELLED, f"{e.code()} {e.details()}")
                counted.release()
    threads = [threading.Thread(target=leave, args=(s,)) for s in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    last = time.monotonic()

    def held():
        return [(n.name, pages_in_use(n), n.metric("baton_handoff_transfers_live"), n.metric("baton_prefill_transfers_live"),
                 n.metric("baton_handoff_landing_bytes")) for n in (p, d)]
    wait_for(lambda: all(not any(h[1:]) for h in held()), 1.5, "memory at the baseline within a second")
    print(f"baseline {time.monotonic() - last:.2f} s after the last close")
    aborted = 0
    while counted.acquire(blocking=False):
        aborted += 1
    check(aborted == total, f"{aborted} of {total} calls were cancelled")
    # A call may be left before it reached the next hop, so the counts only fall along the way; nothing is counted twice.
    at_router = r.metric("baton_requests_total", code="CANCELLED")
    at_decode = d.metric("baton_requests_total", outcome="aborted")
    at_prefill = p.metric("baton_prefill_transfers_total", outcome="aborted")
    check(total >= at_router >= at_decode >= at_prefill > 0, f"aborts counted: {total}, {at_router}, {at_decode}, {at_prefill}")
    check(at_decode == sum(d.metric("baton_requests_total", outcome=o) for o in ("ok", "aborted", "error", "deadline")),
          "an abort has another outcome")
    for n in (r, d):
        check(n.metric("baton_time_to_first_token_seconds_count") == 0, f"{n.name} has first tokens of calls that got none")
    check(len(client.generate(prompt_of(300, 1), strategy="raw").ids) == 16, "no answer after the aborts")


def time_to_first_token(d, r, client):
    """20 at once on a node that runs one at a time: most of the time to the first token is waiting."""
    warm = client.generate(prompt_of(300, 3), strategy="raw", max_tokens=2)
    check(warm.finished.usage.transferred_tokens > 0, f"no hand-off: {warm.finished.timing.fallback_reason}")

    def stages():
        return {s: d.metric("baton_ttft_stage_seconds_sum", stage=s) for s in ("queue", "prefill", "transfer", "suffix")}
    name = "baton_time_to_first_token_seconds"
    before = (r.metric(name + "_sum", stream="true"), d.metric(name + "_sum"), stages(),
              r.metric("baton_router_overhead_seconds_sum", stage="total"))
    seen, lock = [], threading.Lock()

    def ask(i):
        started = time.monotonic()
        first = None
        for event in client.stub.Generate(client.request(prompt_of(300, 50 + i), strategy="raw" if i % 2 else "oracle",
                                                         max_tokens=16), timeout=120):
            if first is None and event.delta.token_ids:
                first = time.monotonic() - started
        with lock:
            seen.append(first)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    at_router = r.metric(name + "_sum", stream="true") - before[0]
    at_decode = d.metric(name + "_sum") - before[1]
    now = stages()
    parts = {s: now[s] - before[2][s] for s in now}
    overhead = r.metric("baton_router_overhead_seconds_sum", stage="total") - before[3]
    print(f"clients saw {sum(seen):.2f} s, the router {at_router:.2f} s, overhead {overhead:.3f} s, stages {parts}")
    check(len(seen) == 20 and sum(seen) > 10, f"the requests did not wait for each other: {seen}")
    check(abs(at_router - sum(seen)) <= 0.05 * sum(seen), f"the router says {at_router} s, clients saw {sum(seen)} s")
    check(abs(sum(parts.values()) - at_decode) <= 0.001 * at_decode + 1e-6, f"the stages {parts} are not {at_decode} s")
    check(abs(overhead + sum(parts.values()) - at_router) <= 0.05 * at_router, f"{overhead} + {parts} are not {at_router} s")
    check(parts["queue"] > 0.5 * at_router and all(v > 0 for v in parts.values()), f"stages: {parts}")
    count = r.metric(name + "_count", stream="true")
    check(post(r, "/v1/completions", {"model": "tiny", "prompt": prompt_of(70, 4), "max_tokens": 4})[0] == 200, "no answer")
    check(r.metric(name + "_count", stream="true") == count and r.metric(name + "_count", stream="false") == 1,
          "a reply that is not streamed is in the series of those that are")


def scenario_limits_and_templates():
    """Cases len-03, lora-05 and tpl-06: message limits, the rank limit, where a chat template comes from."""
    with Cluster() as c:
        path = write_tiny_model(c.dir / "model", seed=4)
        named = {"default": TEMPLATE, "tool_use": TEMPLATE.replace("im_start", "im_tool")}
        ggufs = [("embedded", write_tiny_gguf(c.dir / "embedded.gguf", path, {"": TEMPLATE}), {}),
                 ("none", write_tiny_gguf(c.dir / "none.gguf", path, {}), {}),
                 ("set", write_tiny_gguf(c.dir / "set.gguf", path, {}), {"chat_template": "chatml"}),
                 ("named", write_tiny_gguf(c.dir / "named.gguf", path, {"": TEMPLATE, **named}), {})]
        d = c.decode([tiny_entry(path)] + [tiny_entry(f, name, **extra) for name, f, extra in ggufs]).start()
        r = c.router([d], []).start()
        small = c.router([d], [], name="small", rpc={"max_message_bytes": "1MiB"}).start()
        refused = c.decode([tiny_entry(path, adapter=write_tiny_adapter(c.dir / "big", 3, rank=64))], name="refused",
                           engine={"max_lora_rank": 16}).start(wait=False)
        client, limited = Client(r), Client(small)
        client.wait_ready(models=5)
        limited.wait_ready(models=5)
        templates(d, r, client)
        message_limits(r, small, client, limited)
        check(refused.process.wait(30) > 0, "an adapter of rank 64 was taken where 16 is the limit")
        check("'r' is 64, at most 16 allowed" in refused.log(), refused.log()[-800:])


TEMPLATE = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def templates(d, r, client):
    messages = [{"role": "user", "content": "hi"}]
    chat = {n: post(r, "/v1/chat/completions", {"model": n, "messages": messages, "max_tokens": 8, "temperature": 0})
            for n in ("tiny", "embedded", "none", "set", "named")}
    want = chat["tiny"][1]["choices"][0]["message"]["content"]
    for n in ("embedded", "set", "named"):
        check(chat[n][0] == 200 and chat[n][1]["choices"][0]["message"]["content"] == want, f"{n}: {chat[n]}, want {want!r}")
    check(chat["none"][0] == 400 and "chat_template" in chat["none"][1]["error"]["message"], f"without a template: {chat['none']}")
    plain = {n: list(client.generate("hello", model=n).ids) for n in chat}
    check(len({str(v) for v in plain.values()}) == 1, f"plain completion differs: {plain}")
    for text in ("embedded.gguf (tokenizer.chat_template)", "\"set\": chat template chatml of the configuration",
                 "\"none\": no chat template"):
        check(text in d.log(), f"the log does not say where a template came from: no '{text}'")


def message_limits(r, small, client, limited):
    text = "x" * (5 << 20)
    got = client.try_generate(text, model="tiny")
    check(got.code == grpc.StatusCode.INVALID_ARGUMENT and "4096" in got.error, f"5 MiB of prompt: {got.code} {got.error}")
    import router_pb2
    ids = client.stub.Tokenize(router_pb2.TokenizeRequest(model="tiny", text=text), timeout=60).ids
    check(len(ids) == len(text), "a reply of more than 4 MiB")
    got = limited.try_generate(text, model="tiny")
    check(got.code == grpc.StatusCode.RESOURCE_EXHAUSTED and str(1 << 20) in got.error, f"over the limit: {got.code} {got.error}")
    check(limited.generate("x" * 4000, model="tiny").finished.usage.prompt_tokens == 4000, "the node does not go on")
    for node, limit in ((r, 16 << 20), (small, 1 << 20)):
        check(f"message limit {limit} bytes" in node.log(), "the limit is not printed at start")
